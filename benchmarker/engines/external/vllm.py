"""vLLM: it runs quantized checkpoints or quantizes while loading; a check proves that layers run quantized."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from benchmarker.checkpoints.base import Checkpoint, Progress
from benchmarker.engines.base import Form, why_uneven
from benchmarker.engines.external.checkpoint_engine import CheckpointEngine, CheckpointOptions, speculation_of
from benchmarker.engines.external.environments import Marker
from benchmarker.hardware.device import Device

EXPERTS_ONLY = ("int8_per_channel_weight_only",)
"""Online quantizations of vLLM that quantize only experts (vllm/config/quantization.py, 0.33)."""

BEFORE_HUMMING = "CutlassW4A8LinearKernel,MacheteLinearKernel,AllSparkLinearKernel,MarlinLinearKernel"
"""Kernels that vLLM 0.24.0 prefers to Humming's. Disabling them selects Humming; linear_backend cannot select it."""
VARIABLES = {"cpu_kv_cache_gib": "VLLM_CPU_KVCACHE_SPACE", "disabled_kernels": "VLLM_DISABLED_KERNELS"}
"""Environment variable of vLLM by argument of the driver."""


class VllmOptions(CheckpointOptions):
    linear_backend: str | None = None
    """Kernels of quantized linears: `marlin`, `machete`, `exllama`, `humming`, ...; default: vLLM's choice, which is
    Machete for GPTQ and AWQ on Hopper."""
    max_model_len: int | None = Field(default=None, gt=0)
    """Maximum length of a sequence in tokens; default: the model's."""
    max_num_seqs: int | None = Field(default=None, gt=0)
    """Maximum number of sequences at once; default: vLLM's choice."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of the GPU's memory that vLLM reserves, mostly for the KV cache."""
    cpu_kv_cache_gib: int = Field(default=1, gt=0)
    """Size of the KV cache on a CPU, in GiB."""


class VllmEngine(CheckpointEngine):
    name = "vllm"
    title = "vLLM"
    options = VllmOptions
    has_trace = True
    sizing_options = ("max_model_len", "max_num_seqs", "gpu_memory_utilization", "cpu_kv_cache_gib")

    def why_not_split(self, form: Form) -> str | None:
        return "vLLM divides tensors; leave --split layers out" if form.split == "layers" else None

    def why_not_taken(self, form: Form, checkpoint: Checkpoint) -> str | None:
        options = form.engine_options
        assert isinstance(options, VllmOptions)
        if options.quantization in EXPERTS_ONLY:
            return (
                f"vLLM's {options.quantization} quantizes experts alone, so that a dense model would run in 16 bit "
                "under that label; use quantization=fp8_per_channel, or a quantized checkpoint"
            )
        uneven = why_uneven(checkpoint, form.gpus, copies=True)
        return uneven or super().why_not_taken(form, checkpoint)

    def arguments(
        self, checkpoint: Checkpoint, form: Form, device: Device, marker: Marker, progress: Progress
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        del marker, progress
        options = form.engine_options
        assert isinstance(options, VllmOptions)
        arguments = {
            "model": str(checkpoint.folder.resolve()),
            "dtype": form.dtype,
            "trust_remote_code": checkpoint.trust_remote_code,
            "tensor_parallel_size": form.gpus,
            **options.model_dump(exclude={"speculative"}, exclude_none=True),
            "cpu_kv_cache_gib": options.cpu_kv_cache_gib if device.kind == "cpu" else None,
        }
        if options.linear_backend == "humming":
            arguments["disabled_kernels"] = BEFORE_HUMMING
            del arguments["linear_backend"]
        if form.gpus > 1:
            # FlashInfer compiles its fused sum and norm for minutes, and shares memory by NVLink multicast.
            arguments["compilation_config"] = {"pass_config": {"fuse_allreduce_rms": False}}
        if options.speculative:
            method, tokens, draft = speculation_of(options.speculative)
            # Lengths of matching n-grams as in vLLM's benchmarks/README.md.
            more = {"prompt_lookup_max": 5, "prompt_lookup_min": 2} if method == "ngram" else {"model": draft}
            arguments["speculative_config"] = {"method": method, "num_speculative_tokens": tokens, **more}
        return arguments, {}
