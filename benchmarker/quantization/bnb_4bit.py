"""4-bit weights through bitsandbytes, dequantized to 16 bits for each matrix product.

NF4's sixteen values are quantiles of a normal distribution, which weights resemble. Every 64 weights share a scale.
Double quantization also quantizes the scales, which saves about 0.4 bits per weight and adds a dequantization.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.checkpoints.read_model import read_model
from benchmarker.quantization.base import FormOptions, Loaded, Loader, own_config_notes

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel


class Bnb4Options(FormOptions):
    quant_type: Literal["nf4", "fp4"] = "nf4"
    """Sixteen values of a weight: quantiles of a normal distribution (nf4), or 4-bit floating-point numbers (fp4)."""
    double_quant: bool = False
    """Quantize the scales too."""


def load(checkpoint: Checkpoint, options: Bnb4Options, target: Target) -> Loaded:
    """Quantize each weight as it arrives on the device; a 4-bit checkpoint is loaded as it is."""
    import torch
    from transformers import BitsAndBytesConfig

    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=options.quant_type,
        bnb_4bit_use_double_quant=options.double_quant,
        bnb_4bit_compute_dtype=getattr(torch, target.dtype),
    )
    stored = checkpoint.quantization
    if stored is not None:
        notes = own_config_notes("bitsandbytes 4 bit", stored_options(stored), options)
        return Loaded(_with_whole_blocks_packed(read_model(checkpoint, target)), notes)
    return Loaded(_with_whole_blocks_packed(read_model(checkpoint, target, quantization=quantization)))


def _with_whole_blocks_packed(model: PreTrainedModel) -> PreTrainedModel:
    # For CPUs with AVX512-BF16, bitsandbytes 0.50 repacks weights in blocks of 32 rows and 64 columns.
    packed: list[Any] = [module for module in model.modules() if hasattr(module, "support_avx512bf16_for_cpu")]
    for linear in packed:
        if linear.out_features % 32 or linear.in_features % 64:
            linear.support_avx512bf16_for_cpu = False
    return model


def reads(stored: dict[str, Any]) -> bool:
    return stored.get("quant_method", "bitsandbytes") == "bitsandbytes" and bool(stored.get("load_in_4bit"))


def stored_options(stored: dict[str, Any]) -> dict[str, Any]:
    return {
        "quant_type": stored.get("bnb_4bit_quant_type", "fp4"),
        "double_quant": stored.get("bnb_4bit_use_double_quant", False),
    }


def extra_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yield scales and code table of a module's 4-bit weight; also those of the scales if they are quantized."""
    state = getattr(getattr(module, "weight", None), "quant_state", None)
    while state is not None:
        for name in ("absmax", "code", "offset"):
            tensor = getattr(state, name, None)
            if tensor is not None:
                yield tensor
        state = getattr(state, "state2", None)


LOADER: Loader = Loader(
    name="bnb4",
    summary="bitsandbytes 4 bit (NF4)",
    options=Bnb4Options,
    packages=("bitsandbytes",),
    load=load,
    reads=reads,
    stored_options=stored_options,
    aliases=("nf4", "bnb-4bit", "bnb-nf4", "bitsandbytes-4bit"),
    splits=("layers",),
    bits=(4,),
    extra_tensors=extra_tensors,
)
