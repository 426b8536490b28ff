"""SGLang, written from its sources. benchmarker's authors have not run it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from benchmarker.checkpoints.base import Checkpoint, Progress
from benchmarker.engines.base import Form
from benchmarker.engines.external.environments import Marker
from benchmarker.engines.external.external_engine import AS_STORED, ExternalEngine, head_refusal
from benchmarker.hardware.device import Device
from benchmarker.quantization.base import Options


class SglangOptions(Options):
    """Options of SGLang."""

    context_length: int | None = Field(default=None, gt=0)
    """Longest sequence; default: the model's own."""
    mem_fraction_static: float | None = Field(default=None, gt=0, lt=1)
    """Share of the GPU's memory for weights and KV cache; default: SGLang's choice."""


class SglangEngine(ExternalEngine):
    name = "sglang"
    summary = "SGLang, in an environment of its own; not run by benchmarker's authors"
    options = SglangOptions

    def why_not_taken(self, form: Form, checkpoint: Checkpoint) -> str | None:
        if checkpoint.is_gguf:
            return "GGUF files are for --engine llama-cpp"
        if form.quant not in AS_STORED and checkpoint.quantization is None:
            return f"SGLang cannot load {form.quant}; it takes {', '.join(AS_STORED)}"
        return head_refusal(form)

    def arguments(
        self, checkpoint: Checkpoint, form: Form, device: Device, marker: Marker, progress: Progress
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        del marker, progress, device
        arguments = {
            "model_path": str(checkpoint.folder.resolve()),
            "dtype": form.dtype,
            "trust_remote_code": checkpoint.trust_remote_code,
            **form.engine_options.model_dump(exclude_none=True),
        }
        return arguments, {}
