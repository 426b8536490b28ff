"""What records say of one query's products that are not a library's own. Needs no torch, for those who read records."""

from collections.abc import Sequence

PACKED = "one query's products with GPTQ's packed words are made by benchmarker's own kernel, not gptqmodel's"
CODES = "one query's products with bitsandbytes' codes are made by benchmarker's own kernel, not bitsandbytes'"
JOINED = "one query's products with the same input are made as one"
GATED = "an MLP's activation is part of its product"


def counted(what: str, ours: Sequence[bool]) -> str:
    """One of these sentences, of linears that could all be ours, some of which are not."""
    return what if all(ours) else f"{what} ({sum(ours)} of {len(ours)} linears)"


def by_rows(ours: int, linears: int) -> str:
    """Of a model with so many linears, some or all of which are ours."""
    which = "all" if ours == linears else f"{ours} of {linears}"
    return f"one query's products with {which} linears are made by benchmarker's own kernel, not inductor's"
