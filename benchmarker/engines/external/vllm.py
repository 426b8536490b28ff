"""vLLM: quantized checkpoints, or quantization while loading, with a check that layers run quantized."""

from __future__ import annotations

import re
from typing import Any

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
from benchmarker.engines.external.speculation import SpeculativeOptions, speculation_of
from benchmarker.hardware.device import Device
from benchmarker.schema.model import ExternalFacts, LoadFacts

EXPERTS_ONLY = ("int8_per_channel_weight_only",)
"""Online quantizations of vLLM for experts only (vllm/config/quantization.py, 0.33)."""
UNQUANTIZED = "Unquantized"  # Prefix of vLLM's class names for layers of 16 bit.
ONE_BYTE = re.compile(r"int8|float8")


class VllmOptions(SpeculativeOptions):
    """Options of vLLM."""

    quantization: str | None = None
    """Online quantization of a 16-bit checkpoint: `fp8`, `fp8_per_channel`, `bitsandbytes`, ..."""
    linear_backend: str | None = None
    """Kernels of quantized linears: `marlin`, `machete`, `exllama`, `humming`, ...; default: vLLM's choice, which is
    Machete for GPTQ and AWQ on Hopper."""
    max_model_len: int | None = Field(default=None, gt=0)
    """Longest sequence; default: the model's own."""
    max_num_seqs: int | None = Field(default=None, gt=0)
    """Maximum number of sequences at once; default: vLLM's choice."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of the GPU's memory that vLLM reserves, mostly for the KV cache."""
    cpu_kv_cache_gib: int = Field(default=1, gt=0)
    """Size of the KV cache on a CPU."""


class VllmEngine(ExternalEngine):
    name = "vllm"
    summary = "vLLM, in an environment of its own"
    options = VllmOptions
    quantizing_option = "quantization"
    sizing_options = ("max_model_len", "max_num_seqs", "gpu_memory_utilization", "cpu_kv_cache_gib")
    mixes_prefill = True

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
            **options.model_dump(exclude={"speculative"}, exclude_none=True),
            "cpu_kv_cache_gib": options.cpu_kv_cache_gib if device.kind == "cpu" else None,
        }
        if options.speculative:
            arguments["speculative_config"] = _speculative_config(options.speculative)
        return arguments, {}

    def prove(self, form: Form, checkpoint: Checkpoint, source: ExternalSource) -> None:
        """Refuse a model that runs unquantized under the label of a quantization, or quantized without one."""
        options = form.engine_options
        assert isinstance(options, VllmOptions)
        label = options.quantization or (checkpoint.quantization or {}).get("quant_method")
        facts = source.external_facts()
        problem = contradiction(label, facts)
        if problem is None and options.quantization:
            problem = too_large(options.quantization, facts, checkpoint)
        if problem:
            raise UnsupportedError(f"vllm: {problem}")

    def loaded(self, checkpoint: Checkpoint, facts: ExternalFacts, *, load_s: float) -> LoadFacts | None:
        packed = sum(count for name, count in facts.weight_bytes_by_type.items() if ONE_BYTE.match(name))
        return load_facts(checkpoint, facts, load_s=load_s, packed_parameters=packed)


def _speculative_config(text: str) -> dict[str, Any]:
    speculation = speculation_of(text)
    config: dict[str, Any] = {"method": speculation.method, "num_speculative_tokens": speculation.tokens}
    if speculation.method == "ngram":
        # Lengths of the repeated text, as in vLLM's benchmarks/README.md.
        return config | {"prompt_lookup_max": 5, "prompt_lookup_min": 2}
    return config | ({"model": speculation.draft} if speculation.draft else {})


def contradiction(label: str | None, facts: ExternalFacts) -> str | None:
    """Return the contradiction between the layers of a model and its label."""
    quantized = [name for name in facts.linear_methods if not name.startswith(UNQUANTIZED)]
    layers = [name for name in quantized if "KVCache" not in name and "Embedding" not in name]
    if label is None:
        return f"its layers run {', '.join(layers)}, though the row is labelled 16 bit" if layers else None
    return None if layers else f"no layer runs quantized, though the row is labelled {label}"
