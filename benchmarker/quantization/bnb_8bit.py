"""Weights in 8 bit through bitsandbytes: LLM.int8(), which quantizes the activations too.

A row of weights and a row of activations have one scale each, and integers are multiplied. A few input channels carry
values far larger than the rest, which would take all of the row's resolution: a channel with a value beyond the
threshold is multiplied in 16 bit instead, with its weights unpacked for that. Finding those channels costs steps of its
own in every product. (Dettmers et al. 2022, https://arxiv.org/abs/2208.07339)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from benchmarker.checkpoints.base import Checkpoint, Progress, Target
from benchmarker.checkpoints.read_model import read_model
from benchmarker.quantization.base import FormOptions, Loaded, Loader, require

if TYPE_CHECKING:
    import torch
    from torch import nn


class Bnb8Options(FormOptions):
    """bitsandbytes 8 bit."""

    threshold: Annotated[float, Field(ge=0)] = 6.0
    """An input channel with a larger value than this is multiplied in 16 bit; 0 multiplies all of them in 8. Above 0
    the host asks the GPU in each product whether there is such a channel, which a captured graph cannot hold."""


def check(options: Bnb8Options, target: Target) -> None:  # noqa: ARG001
    """Any device and type will do.

    Raises:
        MissingLibraryError: bitsandbytes is not installed.
    """
    require("bnb8", "bitsandbytes")


def load(checkpoint: Checkpoint, options: Bnb8Options, target: Target, progress: Progress) -> Loaded:  # noqa: ARG001
    """Read the weights and quantize each as it arrives on the device; a checkpoint in 8 bit is read as it is."""
    from transformers import BitsAndBytesConfig

    stored = checkpoint.quantization
    if stored is not None:
        return Loaded(read_model(checkpoint, target), notes=_stored_config_wins(stored, options))
    quantization = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=options.threshold)
    return Loaded(read_model(checkpoint, target, quantization=quantization))


def _stored_config_wins(stored: dict[str, Any], options: Bnb8Options) -> tuple[str, ...]:
    threshold = stored.get("llm_int8_threshold")
    note = f"the checkpoint is bitsandbytes 8 bit already (threshold={threshold})"
    if "threshold" in options.model_fields_set and options.threshold != threshold:
        return note, f"its own config won over threshold={options.threshold}"
    return (note,)


def reads(stored: dict[str, Any]) -> bool:
    """Whether a checkpoint is bitsandbytes' in 8 bit. transformers writes one `quant_method` for 4 and 8 bit."""
    is_theirs = stored.get("quant_method", "bitsandbytes") == "bitsandbytes"
    return is_theirs and bool(stored.get("load_in_8bit")) and not stored.get("load_in_4bit")


def extra_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """One scale a row, in 32 bits: beside the weight, and from the first product on in the module's state."""
    for holder in (getattr(module, "weight", None), getattr(module, "state", None)):
        scales = getattr(holder, "SCB", None)
        if scales is not None:
            yield scales


LOADER: Loader = Loader(
    name="bnb8",
    summary="bitsandbytes 8 bit (LLM.int8())",
    options=Bnb8Options,
    packages=("bitsandbytes",),
    load=load,
    check=check,
    reads=reads,
    aliases=("llm.int8", "llm-int8", "bnb-8bit", "bnb-int8", "bitsandbytes-8bit"),
    bits=(8,),
    extra_tensors=extra_tensors,
    kernels={
        "MatMul8bitLt": "quantized matmul",
        "bitsandbytes::int8_scaled_mm": "quantized matmul",
        "bitsandbytes::int8_mixed_scaled_mm": "quantized matmul",
        "bitsandbytes::int8_linear_matmul": "quantized matmul",
        "bitsandbytes::int8_mm_dequant": "dequantize",
        "bitsandbytes::int8_vectorwise_dequant": "dequantize",
        "bitsandbytes::int8_vectorwise_quant": "copy/cast",
        "void kInt8VectorQuant<__half, 1024, 1>": "copy/cast",
        "void kdequant_mm_int32_fp16<4, 512>": "dequantize",
    },
)
