"""Which kernels a decode step used, as values: whose they are, what for, and for how many of the model's linears.

Words are made when a record is read. Needs no torch: both who measures and who reads records imports this file.
"""

from __future__ import annotations

from typing import Literal

from benchmarker.schema.base import Number, Plain, Whole

Purpose = Literal["linear", "packed_rows", "joined_linears", "swiglu", "attention", "layer"]
Origin = Literal["library", "inductor", "benchmarker"]
OWN_ATTENTION = "one kernel, reads the filled part"
"""What a record says of this program's attention to the cache; of others, whose they are stands before the comma."""


class KernelUse(Plain):
    """One kernel, or one kind of layer, that a decode step uses."""

    purpose: Purpose
    """`packed_rows` is the product of packed weights with several rows, `linear` that with one; `joined_linears` are
    several linears of one input as one; `swiglu` is an MLP's activation inside its product; `layer` is a whole decoder
    layer made of few kernels."""
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
            "packed_rows": "multiplies packed weights by several rows",
            "joined_linears": "linears of one input are one product",
            "swiglu": "an MLP's activation is part of its product",
            "attention": "attends to the KV cache",
            "layer": "a decoder layer of one sequence is five kernels",
        }[self.purpose]
        count = "" if self.covered is None else f": {self.covered} of {self.total} linears"
        return f"{self.name}, {owner[self.origin]}, {what}{count}"


class ProductChoice(Plain):
    """How the products of one shape are made in a step of several sequences, and the measurement that chose it: of this
    process, or of the first on this machine."""

    form: str
    """Form of the weights, in the words of `kernels/packed_matmul.py`."""
    rows: Whole
    """Sequences of the step."""
    inputs: Whole
    outputs: Whole
    way: str
    """The fastest candidate, by its name in `us`."""
    us: dict[str, Number]
    """What each candidate took alone, in microseconds, with its weights out of the last cache."""

    def words(self) -> str:
        """`nf4, 2560 inputs to 6144 outputs, 8 rows: 9.1 us by 64 outputs, ... (of 5 ...)`."""
        slowest = max(self.us.values(), default=0.0)
        return (
            f"{self.form}, {self.inputs} inputs to {self.outputs} outputs, {self.rows} rows: "
            f"{self.us.get(self.way, 0.0):.1f} us by {self.way} (of {len(self.us)} candidates; "
            f"the slowest {slowest:.1f} us)"
        )


def attention_use(attention: str) -> KernelUse:
    """Return the kernel of a decode step's attention.

    Args:
        attention: As in `EngineFacts.attention`.
    """
    if attention == OWN_ATTENTION:
        return _own("attention", "decode_attention")
    return KernelUse(purpose="attention", origin="library", name=attention.split(",")[0])


def one_row(uses: tuple[KernelUse, ...]) -> tuple[KernelUse, ...]:
    """Return the kernels of a step with fused decode layers, which have their own attention kernel."""
    rest = tuple(use for use in uses if use.purpose != "attention")
    return (*rest, _own("layer", "one_row_layer"), _own("attention", "one_row_attention"))


def _own(purpose: Purpose, name: str) -> KernelUse:
    return KernelUse(purpose=purpose, origin="benchmarker", name=name)


def multiplies_all_packed(uses: tuple[KernelUse, ...]) -> bool:
    """Whether all of GPTQ's linears are multiplied by this program's kernel, and none by the library's."""
    has_own = any(use.name == "gemv_gptq" for use in uses)
    return has_own and not any(use.purpose == "linear" and use.origin == "library" for use in uses)
