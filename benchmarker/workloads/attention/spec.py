"""What is asked of attention: one layer's shapes, the lengths to measure, and the implementations to compare.

Frozen values, checked when they are made, before torch is imported.
"""

from __future__ import annotations

from itertools import product
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from benchmarker.schema.base import Plain
from benchmarker.schema.experiment import ExperimentBase, GridBase, Positive, VariantBase
from benchmarker.schema.job import Job

DType = Literal["float32", "tf32", "bfloat16", "float16"]
"""`float32` multiplies as IEEE says; `tf32` is float32 outside and TF32 (10 bits of fraction) inside the products."""
Mode = Literal["forward", "forward_backward"]
ELEMENT_BYTES: dict[DType, int] = {"float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}


class AttentionSubject(Plain):
    """One attention layer, without its projections."""

    heads: Positive = 16
    """Query heads."""
    kv_heads: Positive | None = None
    """Heads of keys and values, each shared by heads / kv_heads query heads. As many as heads if not said."""
    head_dim: Positive = 128
    """Numbers of one head."""
    dtype: DType = "bfloat16"
    """Type of queries, keys and values: float32, tf32, bfloat16 or float16."""
    causal: bool = True
    """A position attends to itself and to what is before it."""
    window: Positive | None = None
    """Positions that one query sees at most, itself included. All of them if not said."""
    seed: int = 0
    """Of the random inputs."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: {self.heads} heads cannot share {self.kv_heads} evenly; give a divisor")
        if self.window is not None and not self.causal:
            raise ValueError("window: needs causal: true; a window to both sides is not measured")
        return self


class AttentionSubjectAsked(AttentionSubject):
    """The layer, with what a command line alone can say: a config that came with someone's code cannot trust it."""

    trust_code: bool = False
    """Import and run the `module:function` that a variant names."""


class AttentionVariant(VariantBase):
    """One implementation."""

    variant: Annotated[str, Field(min_length=1)]
    """A name of the registry, or `module:function` for a function of your own (needs --trust-code)."""
    dtype: DType | None = None
    """In place of the subject's, so that float32, tf32 and bfloat16 are rows of one table."""


class AttentionPoint(NamedTuple):
    """One cell of the grid."""

    seq_len: int
    batch_size: int
    mode: Mode


class LengthGrid(GridBase):
    """Which lengths are measured, in which batch: what the grids of operations on sequences have in common."""

    seq_len: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1024, 4096, 16384)
    """Positions of one sequence."""
    tokens: tuple[Positive, ...] = ()
    """Tokens of the whole batch: the batch size of a length is tokens / seq_len. Takes the place of batch_size."""
    batch_size: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1,)
    """Sequences at once."""

    @model_validator(mode="after")
    def _tokens_fit(self) -> Self:
        if self.tokens and self.batch_size != (1,):
            raise ValueError("tokens: gives the batch size already; leave out batch_size or tokens")
        for tokens, seq_len in product(self.tokens, self.seq_len):
            if tokens % seq_len:
                raise ValueError(f"tokens: {tokens} is not a multiple of seq_len {seq_len}")
        return self

    def sizes(self) -> list[tuple[int, int]]:
        """Each length with its batch size."""
        pairs = [(seq_len, tokens // seq_len) for tokens, seq_len in product(self.tokens, self.seq_len)]
        return pairs or list(product(self.seq_len, self.batch_size))


class AttentionGrid(LengthGrid):
    """Which lengths are measured, in which batch, forward or with the backward pass."""

    mode: Annotated[tuple[Mode, ...], Field(min_length=1)] = ("forward", "forward_backward")
    """`forward` as in inference; `forward_backward` with the gradients of queries, keys and values."""

    def points(self) -> list[AttentionPoint]:
        """Every cell, smallest first, so that running out of memory costs only the larger ones."""
        cells = [AttentionPoint(seq_len, batch, mode) for (seq_len, batch), mode in product(self.sizes(), self.mode)]
        return sorted(dict.fromkeys(cells))


class AttentionExperiment(ExperimentBase):
    """A whole comparison, as a config file holds it."""

    workload: Literal["attention"] = "attention"
    subject: AttentionSubject = AttentionSubject()
    grid: AttentionGrid = AttentionGrid()
    variants: Annotated[tuple[AttentionVariant, ...], Field(min_length=1)]


class AttentionJob(Job):
    """Everything that one run is told."""

    subject: AttentionSubjectAsked
    variant: AttentionVariant
    grid: AttentionGrid

    @property
    def dtype(self) -> DType:
        """Of queries, keys and values."""
        return self.variant.dtype or self.subject.dtype


class Shape(NamedTuple):
    """Everything that determines the work of one call. Tensors are [batch_size, heads, seq_len, head_dim]."""

    batch_size: int
    seq_len: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    window: int | None
    dtype: DType
    mode: Mode

    @property
    def torch_dtype(self) -> str:
        """Type of the tensors, as torch names it."""
        return "float32" if self.dtype == "tf32" else self.dtype

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype]

    @property
    def is_backward(self) -> bool:
        """Whether the gradients are part of the work."""
        return self.mode == "forward_backward"


def shape_of(subject: AttentionSubject, variant: AttentionVariant, point: AttentionPoint) -> Shape:
    """The work of one cell."""
    return Shape(
        batch_size=point.batch_size,
        seq_len=point.seq_len,
        heads=subject.heads,
        kv_heads=subject.kv_heads or subject.heads,
        head_dim=subject.head_dim,
        causal=subject.causal,
        window=subject.window,
        dtype=variant.dtype or subject.dtype,
        mode=point.mode,
    )
