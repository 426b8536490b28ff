"""GPTQ's storage format, filled with random codes for dummy checkpoints.

A linear layer has four tensors: `qweight`, codes in 32-bit words along the inputs; `scales`, a 16-bit number per group
and output; `qzeros`, the codes of zero along the outputs (minus one in version 1 of the format); `g_idx`, each input's
group.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.base import Packing, PlannedLinear, PlannedTensor
from benchmarker.checkpoints.dummy import plain_tensor
from benchmarker.quantization.gptq.gptqmodel_kernels import check_shapes

if TYPE_CHECKING:
    import torch

WORD_BITS = 32


def quantization_config(options: Any) -> dict[str, Any]:
    return {
        "quant_method": "gptq",
        "format": "gptq",
        "bits": options.bits,
        "group_size": options.group_size,
        "sym": options.sym,
        "desc_act": options.desc_act,
        "damp_percent": options.damp_percent,
        "true_sequential": True,
        "act_group_aware": is_group_aware(options),
    }


def is_group_aware(options: Any) -> bool:
    """Return whether groups are quantized in order of their activations, gptqmodel's default."""
    return options.group_size != -1 and not options.desc_act


def packed_tensors(linear: PlannedLinear, options: Any) -> tuple[PlannedTensor, ...]:
    check_shapes({linear.name: (linear.in_features, linear.out_features)}, quantization_config(options))
    bits, inputs, outputs = options.bits, linear.in_features, linear.out_features
    group = inputs if options.group_size == -1 else options.group_size
    groups = inputs // group
    scale = linear.std / deviation(bits)
    zeros = _zero_words(bits)

    def codes(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return balanced(tensor.random_(-(2**31), 2**31, generator=generator), bits)

    def zero_points(tensor: torch.Tensor, _: torch.Generator) -> torch.Tensor:
        words = tensor.new_tensor(zeros)
        return words.repeat(groups, outputs // WORD_BITS)

    def input_groups(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        import torch

        order = torch.arange(inputs, device=tensor.device)
        if options.desc_act:
            # With activation order, a group's inputs are scattered, which costs kernels time.
            order = torch.randperm(inputs, generator=generator, device=tensor.device)
        return (order // group).to(tensor.dtype)

    tensors = (
        plain_tensor(f"{linear.name}.qweight", "int32", (inputs * bits // WORD_BITS, outputs), codes),
        plain_tensor(f"{linear.name}.qzeros", "int32", (groups, outputs * bits // WORD_BITS), zero_points),
        plain_tensor(f"{linear.name}.scales", "float16", (groups, outputs), lambda tensor, _: tensor.fill_(scale)),
        plain_tensor(f"{linear.name}.g_idx", "int32", (inputs,), input_groups),
    )
    bias = plain_tensor(f"{linear.name}.bias", "float16", (outputs,), lambda tensor, _: tensor.zero_())
    return (*tensors, bias) if linear.bias else tensors


def balanced(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Replace the lowest code, which has no opposite, by zero.

    Otherwise the weights' mean would be a tenth of their deviation, all outputs of a layer would share the sum of its
    inputs, and the model would repeat one token. 3-bit codes lie across words and are not changed.
    """
    if WORD_BITS % bits:
        return words
    used = words
    for shift in range(1, bits):
        used = used | (words >> shift)
    lowest_bits = sum(1 << position for position in range(0, WORD_BITS, bits))
    return words | ((~used & lowest_bits) << (bits - 1))


def deviation(bits: int) -> float:
    if WORD_BITS % bits:
        return math.sqrt((4**bits - 1) / 12)
    half = 2 ** (bits - 1)
    return math.sqrt((half - 1) * (2 * half - 1) / 6)


def _zero_words(bits: int) -> list[int]:
    stored = 2 ** (bits - 1) - 1
    stream = sum(stored << (bits * position) for position in range(WORD_BITS))
    words = [(stream >> (WORD_BITS * word)) & 0xFFFFFFFF for word in range(bits)]
    return [word - 2**32 if word >= 2**31 else word for word in words]


PACKING = Packing(config=quantization_config, tensors=packed_tensors)
