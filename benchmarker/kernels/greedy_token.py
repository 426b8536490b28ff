"""Argmax of one sequence's logits by two small kernels: argmax of each part, then argmax over the parts.

Qwen3-4B has 151,936 logits (300 KB): a single program would need more time for them than a decoder layer takes. Both
kernels use programmatic dependent launch (PDL).
"""

import torch
from torch import Tensor

from benchmarker.kernels.launch_support import supports_pdl, tl, triton

PART = 1024  # Logits per program of the first kernel.


@triton.jit  # type: ignore[untyped-decorator]
def argmax_of_parts_kernel(  # type: ignore[no-untyped-def]
    logits, highest, places, count, part: tl.constexpr, pdl: tl.constexpr
):  # fmt: skip
    if pdl:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    place = tl.program_id(0) * part + tl.arange(0, part)
    values = tl.load(logits + place, mask=place < count, other=float("-inf")).to(tl.float32)
    best = tl.max(values, 0)
    tl.store(highest + tl.program_id(0), best)
    tl.store(places + tl.program_id(0), tl.min(tl.where(values == best, place, count - 1), 0))


@triton.jit  # type: ignore[untyped-decorator]
def argmax_kernel(  # type: ignore[no-untyped-def]
    highest, places, token, parts, count, max_parts: tl.constexpr, pdl: tl.constexpr
):  # fmt: skip
    if pdl:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    part = tl.arange(0, max_parts)
    values = tl.load(highest + part, mask=part < parts, other=float("-inf"))
    place = tl.load(places + part, mask=part < parts, other=0)
    best = tl.max(values, 0)
    tl.store(token, tl.min(tl.where((values == best) & (part < parts), place, count - 1), 0).to(tl.int64))


def greedy_token(logits: Tensor) -> Tensor:
    """Return the first position of the largest logit, [1, 1], int64."""
    count = len(logits)
    parts = triton.cdiv(count, PART)
    highest = logits.new_empty(parts, dtype=torch.float32)
    places = logits.new_empty(parts, dtype=torch.int32)
    token = logits.new_empty((1, 1), dtype=torch.int64)
    pdl = supports_pdl(logits.device)
    options = {"launch_pdl": True} if pdl else {}
    with torch.cuda.device_of(logits):
        argmax_of_parts_kernel[(parts,)](logits, highest, places, count, part=PART, pdl=pdl, num_warps=4, **options)
        argmax_kernel[(1,)](
            highest, places, token, parts, count,
            max_parts=triton.next_power_of_2(parts), pdl=pdl, num_warps=4, **options,
        )  # fmt: skip
    return token
