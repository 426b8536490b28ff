"""8-bit weights through bitsandbytes: LLM.int8(), which quantizes the activations too.

Each row of weights and of activations has one scale, and the GEMM multiplies integers. A few input channels have much
larger values, which would coarsen the scale of all others: a channel with a value above the threshold is multiplied in
16 bits, with its weights dequantized. Finding these channels costs extra steps in every product. (Dettmers et al.
2022, https://arxiv.org/abs/2208.07339)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.checkpoints.read_model import read_model
from benchmarker.quantization.base import FormOptions, Loaded, Loader, own_config_notes

if TYPE_CHECKING:
    import torch
    from torch import nn


class Bnb8Options(FormOptions):
    threshold: Annotated[float, Field(ge=0)] = 6.0
    """Input channels with a larger value are multiplied in 16 bits; 0 multiplies all in 8 bits. Above 0 each product
    synchronizes with the GPU to find such channels, which a CUDA graph cannot contain."""


def load(checkpoint: Checkpoint, options: Bnb8Options, target: Target) -> Loaded:
    """Quantize each weight as it arrives on the device; an 8-bit checkpoint is loaded as it is."""
    from transformers import BitsAndBytesConfig

    stored = checkpoint.quantization
    if stored is not None:
        notes = own_config_notes("bitsandbytes 8 bit", stored_options(stored), options)
        return Loaded(read_model(checkpoint, target), notes)
    quantization = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=options.threshold)
    return Loaded(read_model(checkpoint, target, quantization=quantization))


def reads(stored: dict[str, Any]) -> bool:
    is_theirs = stored.get("quant_method", "bitsandbytes") == "bitsandbytes"
    return is_theirs and bool(stored.get("load_in_8bit")) and not stored.get("load_in_4bit")


def stored_options(stored: dict[str, Any]) -> dict[str, Any]:
    return {"threshold": stored.get("llm_int8_threshold", 6.0)}


def extra_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yield a module's float32 row scales: the weight's, which the first forward pass moves to the module's state."""
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
    reads=reads,
    stored_options=stored_options,
    aliases=("llm.int8", "llm-int8", "bnb-8bit", "bnb-int8", "bitsandbytes-8bit"),
    bits=(8,),
    extra_tensors=extra_tensors,
)
