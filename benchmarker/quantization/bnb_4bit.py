"""Weights in 4 bit through bitsandbytes, unpacked to 16 bit for each multiplication.

NF4's sixteen values are quantiles of a normal distribution, which weights resemble. Every 64 weights share a scale;
with double quantization those scales are quantized too, which saves about 0.4 bits a weight and costs one more step.
"""

from __future__ import annotations

from typing import Any, Literal

from benchmarker.checkpoints.read_model import read_model
from benchmarker.core.errors import ModelError
from benchmarker.quantization.base import Checkpoint, Loaded, Loader, Options, Progress, Target, require


class Bnb4Options(Options):
    """bitsandbytes 4 bit."""

    quant_type: Literal["nf4", "fp4"] = "nf4"
    """The sixteen values: quantiles of a normal distribution, or floating-point numbers of 4 bits."""
    double_quant: bool = False
    """Whether the scales are quantized too."""


def check(options: Bnb4Options, target: Target) -> None:  # noqa: ARG001
    """Any device and type will do.

    Raises:
        MissingLibraryError: bitsandbytes is not installed.
    """
    require("bnb4", "bitsandbytes")


def load(checkpoint: Checkpoint, options: Bnb4Options, target: Target, progress: Progress) -> Loaded:  # noqa: ARG001
    """Read the weights and quantize each as it arrives on the device; a checkpoint in 4 bit is read as it is."""
    import torch
    from transformers import BitsAndBytesConfig

    own = checkpoint.quantization
    if own is not None and not own.get("load_in_4bit"):
        raise ModelError(
            f"bnb4: {checkpoint.model_id} is a bitsandbytes checkpoint in 8 bit; use one in 4 bit or an unquantized one"
        )
    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=options.quant_type,
        bnb_4bit_use_double_quant=options.double_quant,
        bnb_4bit_compute_dtype=getattr(torch, target.dtype),
    )
    if own is not None:
        return Loaded(read_model(checkpoint, target), notes=_own_config_wins(own, options))
    return Loaded(read_model(checkpoint, target, quantization=quantization))


def _own_config_wins(own: dict[str, Any], options: Bnb4Options) -> tuple[str, ...]:
    stored = {"quant_type": own.get("bnb_4bit_quant_type"), "double_quant": own.get("bnb_4bit_use_double_quant")}
    given = options.model_dump(include=options.model_fields_set)
    unused = [f"{key}={value}" for key, value in given.items() if stored[key] != value]
    what = ", ".join(f"{key}={value}" for key, value in stored.items())
    return (f"the checkpoint is bitsandbytes 4 bit already ({what})",) + (
        (f"its own config won over {', '.join(unused)}",) if unused else ()
    )


LOADER: Loader = Loader(
    name="bnb4",
    summary="bitsandbytes 4 bit (NF4)",
    options=Bnb4Options,
    packages=("bitsandbytes",),
    load=load,
    check=check,
    reads=("bitsandbytes",),
)
