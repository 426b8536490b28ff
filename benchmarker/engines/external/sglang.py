"""SGLang, run with 0.5.14 on an H100.

SGLang's scheduler runs the model in another process, in which layers cannot be inspected. The size of the weights
shows whether they were quantized while loading.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from benchmarker.checkpoints.base import Checkpoint, Progress
from benchmarker.engines.base import Form
from benchmarker.engines.external.checkpoint_engine import CheckpointEngine, CheckpointOptions, speculation_of
from benchmarker.engines.external.environments import Marker
from benchmarker.hardware.device import Device

ALGORITHMS = {"ngram": "NGRAM", "draft_model": "STANDALONE", "eagle3": "EAGLE3", "mtp": "NEXTN"}


class SglangOptions(CheckpointOptions):
    quantization: Literal["fp8"] | None = None
    """Online quantization of a 16-bit checkpoint."""
    enable_torch_compile: bool = False
    """Compile the decode step too, in addition to its CUDA graphs."""
    context_length: int | None = Field(default=None, gt=0)
    """Maximum length of a sequence in tokens; default: the model's."""
    max_running_requests: int | None = Field(default=None, gt=0)
    """Maximum number of sequences at once; default: SGLang's choice, 48 with speculative decoding."""
    mem_fraction_static: float | None = Field(default=None, gt=0, lt=1)
    """Share of the GPU's memory for weights and KV cache; default: SGLang's choice."""


class SglangEngine(CheckpointEngine):
    name = "sglang"
    title = "SGLang"
    options = SglangOptions
    sizing_options = ("context_length", "max_running_requests", "mem_fraction_static")

    def arguments(
        self, checkpoint: Checkpoint, form: Form, device: Device, marker: Marker, progress: Progress
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        del marker, progress, device
        options = form.engine_options
        assert isinstance(options, SglangOptions)
        arguments = {
            "model_path": str(checkpoint.folder.resolve()),
            "dtype": form.dtype,
            "trust_remote_code": checkpoint.trust_remote_code,
            **options.model_dump(exclude={"speculative"}, exclude_none=True),
        }
        if options.speculative:
            method, tokens, draft = speculation_of(options.speculative)
            # SGLang's number includes the token that a step makes in addition to accepted drafts.
            arguments |= {"speculative_algorithm": ALGORITHMS[method], "speculative_num_draft_tokens": tokens + 1}
            if method != "ngram":
                arguments |= {"speculative_num_steps": tokens, "speculative_eagle_topk": 1}
                arguments |= {"speculative_draft_model_path": draft} if draft else {}
        return arguments, {}
