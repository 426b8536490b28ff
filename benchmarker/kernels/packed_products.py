"""Products of packed weights with several vectors, of sequences in a decode step or of a prompt.

torch's compiler makes int8's product of two kernels, gptqmodel and bitsandbytes unpack the whole matrix to 16 bits
first: all of them move more bytes than a product in 16 bits would. Here `packed_matmul` and, for 4 bit and up to 64
rows, `matmul_4bit` read the packed weights as the libraries keep them, where a measurement at set-up finds that faster
(`product_choice`).

`matmul_4bit` and cuBLAS in fp16, us for the products of a layer of Qwen3-4B, each the fastest of five cuts, on one H100
(2026-11-25). All are four, with linears of one input joined (`fuse_qkv_gate_up`); the last column is GPTQ's in seven:

| rows | fp16 by cuBLAS | NF4 | GPTQ | GPTQ, not joined |
| --: | --: | --: | --: | --: |
| 2 | 105 | 59 | 57 | 71 |
| 8 | 105 | 60 | 61 | 76 |
| 16 | 105 | 71 | 76 | 84 |
| 32 | 107 | 84 | 88 | 104 |
| 64 | 105 | 120 | 123 | 141 |

The numbers below are `packed_matmul`'s.

| form | bytes a weight, scales included | layout | GB/s of 19456 x 2560 at 8 rows (fp16: 2,800) |
| :-- | --: | :-- | --: |
| int8 | 1 + 2 / inputs | [outputs, inputs], a scale of 16 bits for each output | 2,170 |
| GPTQ | 0.5 + 2.5 / group | [inputs / 8, outputs] words of 32 bits; scales and zeros for groups of inputs | 860 |
| NF4, FP4 | 0.5 + 4 / block | [outputs, inputs / 2] bytes; scales of 32 bits for blocks of inputs | 830 |

Measured on one H200 (2026-11-23). Here and above, the last cache was overwritten before each product. int8 is 1.2 to
1.6 times as fast as cuBLAS in fp16 at 8 and 32 rows and 0.86 to 0.98 times at 64; GPTQ 0.9 to 1.2 times at 8 and 32
(by tiles of two warps mostly) and NF4 0.8 to 1.0; both 0.7 times at 64. 4 bit waits for the tensor cores and not for
its weights.

For the hundreds of vectors of a prompt a product waits for the tensor cores in any form, and unpacking first is added
to it. 19456 x 2560 weights on one H100 (2026-11-24), us. GPTQ is unpacked by `unpack_matrix`; int8 by torch's operators
and NF4 by bitsandbytes' here, and by `unpack_matrix` since:

| rows | fp16 by cuBLAS | int8 packed | int8 unpacked first | GPTQ packed | GPTQ unpacked first | NF4 packed | first |
| --: | --: | --: | --: | --: | --: | --: | --: |
| 256 | 51 | 64 | 195 | 77 | 96 | 95 | 108 |
| 512 | 78 | 93 | 232 | 124 | 122 | 141 | 136 |
| 1,024 | 150 | 171 | 330 | 231 | 195 | 233 | 210 |
"""

from typing import Any

import torch
from torch import Tensor

from benchmarker.kernels import gemv_dense, gemv_gptq, gemv_nf4
from benchmarker.kernels.packed_weights import in_word, is_int4_by_group, order_of, ordered, packed_of
from benchmarker.kernels.pdl import can_start_early
from benchmarker.kernels.product_choice import chosen
from benchmarker.kernels.product_ways import unpacked_way, ways_for
from benchmarker.kernels.read_vector import is_aligned
from benchmarker.kernels.unpack_words import NUMBERS

# No `from __future__ import annotations` here: torch reads the operator's types from its annotations.

MOST_ROWS_INT8 = 2048
"""Most vectors of a product of int8."""
MOST_ROWS_4_BIT = 512
"""The same of 4 bit: with more, unpacking first was faster."""
STEP = 128
"""Inputs of a step of the kernel, and of the smallest group with scales of GPTQ's."""
BLOCK = 64
"""The smallest block of bitsandbytes' that the kernel takes."""
ALL_EIGHT = -0x77777778
"""A word of eight zero points that are 8, as an int32."""


def packed_form(linear: Any) -> str | None:
    """The form of a linear's weights as `Packed.form` names it; None for what this kernel does not take.

    Read once, before the model runs: it looks at the numbers.
    """
    device = getattr(linear, "weight", getattr(linear, "qweight", None))
    if device is None or not can_start_early(device.device) or linear.in_features % STEP or linear.out_features % 8:
        return None
    if gemv_gptq.supports(linear) is None:
        if len(linear.g_idx) // len(linear.scales) % STEP:
            return None
        return "int4 by group" if bool((linear.qzeros == ALL_EIGHT).all()) else "int4 by group, zeros"
    if gemv_nf4.is_4bit(linear):
        state = linear.weight.quant_state
        if gemv_nf4.layout_reason(linear) is not None or state.blocksize % BLOCK:
            return None
        is_known = torch.equal(state.code.cpu().float(), torch.tensor(NUMBERS.get(state.quant_type, ())))
        return str(state.quant_type) if is_known else None
    return "int8 by row" if gemv_dense.is_int8_by_row(linear.weight) else None


def packed_product(hidden: Tensor, linear: Any, form: str) -> Tensor:
    """A linear's product without its bias.

    Args:
        hidden: [..., inputs], as many vectors as `takes_rows`, float16 or bfloat16.
        form: `packed_form` of the linear.

    Returns:
        [vectors, outputs].
    """
    rows = hidden.reshape(-1, hidden.shape[-1])
    order = order_of(form, len(rows))
    placed = ordered(rows, in_word(form), order)
    product: Tensor = packed_matmul(placed, *packed_tensors(linear, form), form, linear.out_features, order)
    return product


def packed_tensors(linear: Any, form: str) -> tuple[Any, ...]:
    """A linear's weights, scales and zeros as `packed_of` takes them."""
    if is_int4_by_group(form):
        return linear.qweight, linear.scales, linear.qzeros
    if form == "int8 by row":
        return *gemv_dense.as_rows(linear.weight), None
    state = linear.weight.quant_state
    return linear.weight, state.absmax, state.code


def takes_rows(hidden: Tensor, form: str) -> bool:
    """Whether there are as many vectors as the kernel takes of this form, of a type that it takes."""
    rows = hidden.numel() // hidden.shape[-1]
    most = MOST_ROWS_INT8 if form == "int8 by row" else MOST_ROWS_4_BIT
    return 1 < rows <= most and hidden.dtype in (torch.float16, torch.bfloat16)


@torch.library.custom_op("benchmarker::packed_matmul", mutates_args=())
def packed_matmul(
    hidden: Tensor,
    weights: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    form: str,
    outputs: int,
    order: str,
) -> Tensor:
    """The product of packed weights with rows, in the way that is fastest for its shape on this device.

    The caller must wait for weights that were written just before on the same device: the kernel does not.

    Args:
        hidden: The rows in their order.
        weights: As `packed_weights.packed_of` takes them; so are `scales`, `zeros`, `form` and `outputs`.
        order: `packed_weights.order_of` the form and the rows.

    Returns:
        [rows, outputs], of the type of `hidden`; summed in 32 bits.
    """
    assert not is_int4_by_group(form) or weights.is_contiguous(), "columns of joined words"
    packed = packed_of(weights, scales, zeros, form, outputs)
    hidden = hidden.contiguous()
    if order == "rows last":
        hidden = hidden.permute(2, 0, 1)
    elif not is_aligned(hidden):
        hidden = hidden.clone()
    return chosen(hidden, packed, ways_for, unpacked_way).launch(hidden, packed)


@packed_matmul.register_fake
def _shape(
    hidden: Tensor,
    weights: Tensor,  # noqa: ARG001
    scales: Tensor,  # noqa: ARG001
    zeros: Tensor | None,  # noqa: ARG001
    form: str,  # noqa: ARG001
    outputs: int,
    order: str,
) -> Tensor:
    return hidden.new_empty((hidden.shape[2 if order == "rows last" else 0], outputs))
