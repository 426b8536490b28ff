"""SGLang: quantized checkpoints, or quantization while loading.

Written and checked against the sources of 0.5.14. Its scheduler runs the model in a process of its own, in which layers
cannot be inspected: the proof of a quantization while loading is the size of the weights.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from benchmarker.checkpoints.base import Checkpoint, Progress
from benchmarker.engines.base import Form, UnsupportedError
from benchmarker.engines.external.environments import Marker
from benchmarker.engines.external.external_engine import (
    AS_STORED,
    ExternalEngine,
    ExternalSource,
    head_refusal,
    load_facts,
    too_large,
)
from benchmarker.engines.external.speculation import Speculation, SpeculativeOptions, speculation_of
from benchmarker.hardware.device import Device
from benchmarker.schema.model import ExternalFacts, LoadFacts


class SglangOptions(SpeculativeOptions):
    """Options of SGLang."""

    quantization: Literal["fp8"] | None = None
    """Online quantization of a 16-bit checkpoint."""
    enable_torch_compile: bool = False
    """Compile the decode step too, in addition to its CUDA graphs."""
    context_length: int | None = Field(default=None, gt=0)
    """Longest sequence; default: the model's own."""
    max_running_requests: int | None = Field(default=None, gt=0)
    """Maximum number of sequences at once; default: SGLang's choice, 48 with speculative decoding."""
    mem_fraction_static: float | None = Field(default=None, gt=0, lt=1)
    """Share of the GPU's memory for weights and KV cache; default: SGLang's choice."""


class SglangEngine(ExternalEngine):
    name = "sglang"
    summary = "SGLang, in an environment of its own; not run by benchmarker's authors"
    options = SglangOptions
    quantizing_option = "quantization"
    sizing_options = ("context_length", "max_running_requests", "mem_fraction_static")
    mixes_prefill = True

    def why_not_taken(self, form: Form, checkpoint: Checkpoint) -> str | None:
        options = form.engine_options
        assert isinstance(options, SglangOptions)
        if checkpoint.is_gguf:
            return "GGUF files are for --engine llama-cpp"
        if options.quantization and (form.quant != "fp16" or checkpoint.quantization is not None):
            return f"quantization={options.quantization} is for a checkpoint of 16 bit, with --quant fp16"
        if form.quant not in AS_STORED and checkpoint.quantization is None:
            forms = ", ".join(AS_STORED)
            return f"SGLang cannot load {form.quant}; it takes {forms}, or --engine-option quantization=fp8"
        return head_refusal(form)

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
            **(_speculative_arguments(speculation_of(options.speculative)) if options.speculative else {}),
        }
        return arguments, {}

    def prove(self, form: Form, checkpoint: Checkpoint, source: ExternalSource) -> None:
        options = form.engine_options
        assert isinstance(options, SglangOptions)
        if options.quantization and (problem := too_large(options.quantization, source.external_facts(), checkpoint)):
            raise UnsupportedError(f"sglang: {problem}")

    def loaded(self, checkpoint: Checkpoint, facts: ExternalFacts, *, load_s: float) -> LoadFacts | None:
        is_packed = facts.settings.get("quantization") is not None
        return load_facts(checkpoint, facts, load_s=load_s, packed_parameters=None if is_packed else 0)


def _speculative_arguments(speculation: Speculation) -> dict[str, Any]:
    """Return arguments of SGLang, whose number of draft tokens includes the one that the step makes anyway."""
    algorithms = {"ngram": "NGRAM", "draft_model": "STANDALONE", "eagle3": "EAGLE3", "mtp": "NEXTN"}
    arguments: dict[str, Any] = {
        "speculative_algorithm": algorithms[speculation.method],
        "speculative_num_draft_tokens": speculation.tokens + 1,
    }
    if speculation.method != "ngram":
        arguments |= {"speculative_num_steps": speculation.tokens, "speculative_eagle_topk": 1}
    return arguments | ({"speculative_draft_model_path": speculation.draft} if speculation.draft else {})
