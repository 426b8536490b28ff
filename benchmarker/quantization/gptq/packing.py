"""GPTQ's format on disk, filled with random codes: a dummy checkpoint that nobody had to quantize.

A linear layer becomes four tensors. `qweight` holds the codes, 32 bits to a word, packed along the inputs; `scales`
one 16-bit number per group of inputs and output; `qzeros` the code that means zero, packed along the outputs; `g_idx`
each input's group. Version 1 of the format stores that code minus one.
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
    """What config.json says of a checkpoint packed with these options."""
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
    """Whether groups are quantized in order of their activations: the default of gptqmodel, where it can."""
    return options.group_size != -1 and not options.desc_act


def packed_tensors(linear: PlannedLinear, options: Any) -> tuple[PlannedTensor, ...]:
    """The tensors of one layer."""
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
            # With activation order, the groups' inputs are scattered, and kernels pay for that.
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
    """Random codes with zero in place of the lowest, which has no opposite.

    With it the weights would lean to one side, by a tenth of their deviation: all of a layer's outputs then share what
    its inputs sum up to, and the model makes one token over and over. Three bits lie across words, and are left.
    """
    if WORD_BITS % bits:
        return words
    used = words
    for shift in range(1, bits):
        used = used | (words >> shift)
    lowest_bits = sum(1 << position for position in range(0, WORD_BITS, bits))
    return words | ((~used & lowest_bits) << (bits - 1))


def deviation(bits: int) -> float:
    """Of such codes."""
    if WORD_BITS % bits:
        return math.sqrt((4**bits - 1) / 12)
    half = 2 ** (bits - 1)
    return math.sqrt((half - 1) * (2 * half - 1) / 6)


def _zero_words(bits: int) -> list[int]:
    """The middle code minus one, 32 times, as signed words."""
    stored = 2 ** (bits - 1) - 1
    stream = sum(stored << (bits * position) for position in range(WORD_BITS))
    words = [(stream >> (WORD_BITS * word)) & 0xFFFFFFFF for word in range(bits)]
    return [word - 2**32 if word >= 2**31 else word for word in words]


PACKING = Packing(config=quantization_config, tensors=packed_tensors)
