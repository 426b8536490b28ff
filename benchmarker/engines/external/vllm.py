"""vLLM: quantized checkpoints, or quantization while loading, with a check that layers run quantized."""

from __future__ import annotations

import math
import re
from typing import Any

from pydantic import Field

from benchmarker.checkpoints.base import Checkpoint, Progress
from benchmarker.checkpoints.gguf_file import tensor_shapes
from benchmarker.engines.base import Form, UnsupportedError
from benchmarker.engines.external.environments import Marker
from benchmarker.engines.external.external_engine import AS_STORED, ExternalEngine, ExternalSource, head_refusal
from benchmarker.hardware.device import Device
from benchmarker.quantization.base import Options
from benchmarker.schema.model import ExternalFacts, LoadFacts

EXPERTS_ONLY = ("int8_per_channel_weight_only",)
"""Online quantizations of vLLM for experts only (vllm/config/quantization.py, 0.33)."""
UNQUANTIZED = "Unquantized"  # Prefix of vLLM's class names for layers of 16 bit.
ONE_BYTE = re.compile(r"int8|float8")


class VllmOptions(Options):
    """Options of vLLM."""

    quantization: str | None = None
    """Online quantization of a 16-bit checkpoint: `fp8`, `fp8_per_channel`, `bitsandbytes`, ..."""
    max_model_len: int | None = Field(default=None, gt=0)
    """Longest sequence; default: the model's own."""
    max_num_seqs: int = Field(default=16, gt=0)
    """Maximum number of sequences at once."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of the GPU's memory that vLLM reserves, mostly for the KV cache."""
    cpu_kv_cache_gib: int = Field(default=1, gt=0)
    """Size of the KV cache on a CPU."""


class VllmEngine(ExternalEngine):
    name = "vllm"
    summary = "vLLM, in an environment of its own"
    options = VllmOptions

    def why_not_split(self, form: Form) -> str | None:
        return "vLLM divides tensors; leave --split layers out" if form.split == "layers" else None

    def why_not_taken(self, form: Form, checkpoint: Checkpoint) -> str | None:
        options = form.engine_options
        assert isinstance(options, VllmOptions)
        method = (checkpoint.quantization or {}).get("quant_method")
        if checkpoint.is_gguf:
            return "vLLM reads GGUF files through a plugin that is not wired here; use --engine llama-cpp"
        if options.quantization in EXPERTS_ONLY:
            return (
                f"vLLM's {options.quantization} quantizes experts alone, so that a dense model would run in 16 bit "
                "under that label; use quantization=fp8_per_channel, or a quantized checkpoint"
            )
        if options.quantization is not None and (form.quant != "fp16" or method is not None):
            return f"quantization={options.quantization} is for a checkpoint of 16 bit, with --quant fp16"
        if method is not None or form.quant == "fp16":
            return head_refusal(form)
        if form.quant not in AS_STORED:
            forms = ", ".join(AS_STORED)
            return f"vLLM cannot load {form.quant}; it takes {forms}, or --engine-option quantization=fp8"
        return f"{form.quant} is not what the checkpoint holds; make one with 'benchmarker checkpoint make'"

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
            **options.model_dump(),
            "cpu_kv_cache_gib": options.cpu_kv_cache_gib if device.kind == "cpu" else None,
        }
        return arguments, {}

    def prove(self, form: Form, checkpoint: Checkpoint, source: ExternalSource) -> None:
        """Refuse a model that runs unquantized under the label of a quantization, or quantized without one."""
        options = form.engine_options
        assert isinstance(options, VllmOptions)
        label = options.quantization or (checkpoint.quantization or {}).get("quant_method")
        file_bytes = sum(path.stat().st_size for path in checkpoint.folder.glob("*.safetensors"))
        plain_bytes = file_bytes if checkpoint.quantization is None else None
        problem = contradiction(label, source.external_facts(), plain_bytes)
        if problem:
            raise UnsupportedError(f"vllm: {problem}")

    def loaded(self, checkpoint: Checkpoint, facts: ExternalFacts, *, load_s: float) -> LoadFacts | None:
        if checkpoint.quantization is not None or facts.weight_bytes is None:
            return None
        parameters = sum(math.prod(shape) for _, shape in tensor_shapes(checkpoint.folder, checkpoint.config))
        packed = sum(count for name, count in facts.weight_bytes_by_type.items() if ONE_BYTE.match(name))
        return LoadFacts(
            load_s=load_s,
            weight_bytes=facts.weight_bytes,
            parameters=parameters,
            bits_per_weight=8 * facts.weight_bytes / parameters,
            quantized_fraction=min(1.0, packed / parameters),
            linear_classes=facts.linear_methods,
            weight_classes={},
            lm_head_dtype=str(facts.settings.get("dtype")),
            lm_head_tied=bool(checkpoint.config.get("tie_word_embeddings")),
        )


def contradiction(label: str | None, facts: ExternalFacts, plain_bytes: int | None) -> str | None:
    """Return the contradiction between a model and its label. Online quantization must take clearly less than the
    checkpoint's files, `plain_bytes`, which are None for a quantized checkpoint."""
    quantized = [name for name in facts.linear_methods if not name.startswith(UNQUANTIZED)]
    layers = [name for name in quantized if "KVCache" not in name and "Embedding" not in name]
    if label is None:
        return f"its layers run {', '.join(layers)}, though the row is labelled 16 bit" if layers else None
    if not layers:
        return f"no layer runs quantized, though the row is labelled {label}"
    if plain_bytes is not None and facts.weight_bytes is not None and facts.weight_bytes > 0.95 * plain_bytes:
        return (
            f"the weights take {facts.weight_bytes:,} bytes of {plain_bytes:,} in 16 bit, though the row is labelled "
            f"{label}"
        )
    return None
