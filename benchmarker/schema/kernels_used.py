"""Which kernels a decode step used, as values: whose they are, what for, and for how many of the model's linears.

Words are made when a record is read. Needs no torch: both who measures and who reads records imports this file.
"""

from __future__ import annotations

import re
from typing import Literal

from benchmarker.schema.base import Plain

Purpose = Literal["linear", "joined_linears", "swiglu", "attention"]
Origin = Literal["library", "inductor", "benchmarker"]
LIBRARY_LINEAR = "the library's own linear"
"""Name of a linear's kernel where an old record counts it and does not name it."""

PACKED = "one query's products with GPTQ's packed words are made by benchmarker's own kernel, not gptqmodel's"
CODES = "one query's products with bitsandbytes' codes are made by benchmarker's own kernel, not bitsandbytes'"
JOINED = "one query's products with the same input are made as one"
GATED = "an MLP's activation is part of its product"
_BY_ROWS = re.compile(
    r"one query's products with (?:all|(\d+) of (\d+)) linears are made by benchmarker's own kernel, not inductor's"
)
_COUNTED = re.compile(r"(.*) \((\d+) of (\d+) linears\)")


class KernelUse(Plain):
    """One kernel, or one kind of layer, that a decode step uses."""

    purpose: Purpose
    """`joined_linears` are several linears of one input as one; `swiglu` is an MLP's activation inside its product."""
    origin: Origin
    """Whose kernel it is: the library's that brought the layer, written by torch's compiler, or this program's."""
    name: str
    """The kernel's name, or the library's class of layer."""
    covered: int | None = None
    """Linears that it multiplies by. None where it is not about linears, and where all that could be are."""
    total: int | None = None
    """Linears of the model."""

    def words(self) -> str:
        """`gemv_gptq, benchmarker's own kernel: 252 of 253 linears`."""
        owner = {
            "library": "the library's",
            "inductor": "torch's compiler's",
            "benchmarker": "benchmarker's own kernel",
        }
        what = {
            "linear": "multiplies",
            "joined_linears": "linears of one input are one product",
            "swiglu": "an MLP's activation is part of its product",
            "attention": "attends to the KV cache",
        }[self.purpose]
        count = "" if self.covered is None else f": {self.covered} of {self.total} linears"
        return f"{self.name}, {owner[self.origin]}, {what}{count}"


def read_sentences(own_products: str | None) -> tuple[KernelUse, ...]:
    """The same of a record from before `kernels_used`, which holds sentences joined by semicolons."""
    uses: list[KernelUse] = []
    for sentence in (own_products or "").split("; "):
        uses += _uses_of(sentence)
    return tuple(uses)


def _uses_of(sentence: str) -> list[KernelUse]:
    dense = _BY_ROWS.fullmatch(sentence)
    if dense:
        return [_own("linear", "gemv_dense", dense[1], dense[2])]
    counted = _COUNTED.fullmatch(sentence)
    text, covered, total = counted.groups() if counted else (sentence, None, None)
    kernel = {PACKED: "gemv_gptq", CODES: "gemv_nf4"}.get(text)
    if kernel:
        uses = [_own("linear", kernel, covered, total)]
        if counted:
            rest = int(counted[3]) - int(counted[2])
            uses.append(
                KernelUse(purpose="linear", origin="library", name=LIBRARY_LINEAR, covered=rest, total=int(counted[3]))
            )
        return uses
    if text == JOINED:
        return [_own("joined_linears", "fuse_qkv_gate_up")]
    return [_own("swiglu", "gemv_swiglu")] if text == GATED else []


def _own(purpose: Purpose, name: str, covered: str | None = None, total: str | None = None) -> KernelUse:
    return KernelUse(
        purpose=purpose,
        origin="benchmarker",
        name=name,
        covered=int(covered) if covered else None,
        total=int(total) if total else None,
    )


def multiplies_all_packed(uses: tuple[KernelUse, ...]) -> bool:
    """Whether all of GPTQ's linears are multiplied by this program's kernel, and none by the library's."""
    has_own = any(use.name == "gemv_gptq" for use in uses)
    return has_own and not any(use.purpose == "linear" and use.origin == "library" for use in uses)
