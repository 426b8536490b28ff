"""GPTQ weights in 2, 3, 4 or 8 bits through optimum and gptqmodel, the successor of auto-gptq.

GPTQ rounds a layer's weights column by column, and adjusts the remaining columns to compensate each error on a
calibration text. A GPTQ checkpoint is loaded with its own config; a plain one is quantized once and cached; a dummy is
written packed. All three are then loaded by the same code. The output layer is not quantized.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from benchmarker.checkpoints.base import Checkpoint, Progress, Target
from benchmarker.core.errors import SpecError
from benchmarker.quantization.base import FormOptions, Loaded, Loader, require
from benchmarker.quantization.gptq.gptqmodel_kernels import (
    KernelName,
    check_kernel,
    check_what_ran,
    find_gpu,
    read_packed,
)
from benchmarker.quantization.gptq.packing import PACKING
from benchmarker.quantization.gptq.quantize import calibration_text, quantized

FORMAT_KEYS = ("bits", "group_size", "sym", "desc_act", "damp_percent")


class GPTQOptions(FormOptions):
    """GPTQ. All options but `kernel` determine the checkpoint; a GPTQ checkpoint has its own."""

    bits: Literal[2, 3, 4, 8] = 4
    """Bits per weight."""
    group_size: int = 128
    """Input channels that share a scale; -1 for a whole row."""
    sym: bool = True
    """Make zero the middle code; otherwise each group has its own zero point."""
    desc_act: bool = False
    """Quantize columns in order of their activations: slightly more accurate, and slower."""
    damp_percent: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the Hessian's mean diagonal that is added to it, for stability."""
    kernel: KernelName = "auto"
    """Kernel of the linears: auto is gptqmodel's choice. torch runs on any device, torch_aten on CPUs, triton on GPUs,
    exllama_v2 and marlin on NVIDIA GPUs (marlin from compute capability 8.0), compiled at first use. On Hopper auto is
    Machete, which downloads CUTLASS to compile. gptqmodel compiles the dequantization of its torch kernel even in eager
    runs."""
    calibration: str | None = None
    """Text file for calibration; None for the text that ships with benchmarker."""
    calibration_samples: Annotated[int, Field(gt=0)] = 64
    """Number of text pieces."""
    calibration_tokens: Annotated[int, Field(gt=0)] = 512
    """Tokens per piece."""

    @field_validator("group_size")
    @classmethod
    def _known_group_size(cls, group_size: int) -> int:
        group_sizes = (-1, 16, 32, 64, 128, 256, 512, 1024)
        if group_size not in group_sizes:
            raise ValueError(f"{group_size} is not one of {', '.join(map(str, group_sizes))}")
        return group_size


def check(options: GPTQOptions, target: Target) -> None:
    """Raise an error for missing libraries, calibration texts, and unsupported kernels, types and devices."""
    require("gptq", "optimum", "gptqmodel")
    if target.dtype == "float32":
        raise SpecError("gptq: its kernels support 16-bit types only; use --dtype float16 or bfloat16")
    check_kernel(options.kernel, options.model_dump(), find_gpu(target.device))
    calibration_text(options.calibration)


def prepare(checkpoint: Checkpoint, options: GPTQOptions, target: Target, progress: Progress) -> Checkpoint:
    """Return a GPTQ checkpoint as it is, or the quantized one, cached or new."""
    if checkpoint.quantization is not None:
        return checkpoint
    return quantized(checkpoint, options, target, progress)


def load(checkpoint: Checkpoint, options: GPTQOptions, target: Target, progress: Progress) -> Loaded:  # noqa: ARG001
    checkpoint_config = checkpoint.quantization or {}
    stored = {
        key: checkpoint_config.get(key, value) for key, value in options.model_dump(include=set(FORMAT_KEYS)).items()
    }
    check_kernel(options.kernel, stored, find_gpu(target.device))
    from transformers import GPTQConfig

    # transformers takes the backend from this config and everything else from the checkpoint.
    backend = "auto" if options.kernel == "auto" else f"gptq_{options.kernel}"
    quantization = GPTQConfig(bits=stored["bits"], group_size=stored["group_size"], backend=backend)
    model = read_packed("gptq", checkpoint, target, quantization)
    linear_class = check_what_ran(options.kernel, model)
    return Loaded(
        model, notes=(f"kernel {options.kernel}: {linear_class}", *_own_config_wins(checkpoint_config, options))
    )


def _own_config_wins(checkpoint_config: dict[str, Any], options: GPTQOptions) -> tuple[str, ...]:
    """Return notes on the options that the checkpoint's own config overrides."""
    meta = checkpoint_config.get("meta")
    if isinstance(meta, dict) and "benchmarker" in meta:
        return (str(meta["benchmarker"]),)
    choices = options.model_dump(include=options.model_fields_set - {"kernel"})
    unused = [
        f"{key}={value}"
        for key, value in choices.items()
        if key not in checkpoint_config or checkpoint_config[key] != value
    ]
    if not unused:
        return ()
    format_words = ", ".join(f"{key}={checkpoint_config[key]}" for key in FORMAT_KEYS if key in checkpoint_config)
    return (f"the checkpoint is GPTQ already; its own config ({format_words}) won over {', '.join(unused)}",)


LOADER: Loader = Loader(
    name="gptq",
    summary="GPTQ 4 bit (gptqmodel)",
    options=GPTQOptions,
    packages=("optimum", "gptqmodel"),
    load=load,
    check=check,
    prepare=prepare,
    reads=lambda stored: stored.get("quant_method") == "gptq",
    packing=PACKING,
    aliases=("gptqmodel", "auto-gptq", "autogptq"),
    dtypes=("float16", "bfloat16"),
    bits=(2, 3, 4, 8),
    kernels={
        "gptqmodel_exllamav2::gemm_half_q_half": "quantized matmul",
        "void marlin::Marlin<__half, 256, 1, 8, 8>": "quantized matmul",
        "gptqmodel::torch_aten_linear": "quantized matmul",
        "dequant_kernel_248": "dequantize",
    },
)
