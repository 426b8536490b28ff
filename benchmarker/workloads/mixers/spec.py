"""What is asked of token mixers: the shapes of one layer, the lengths to measure, and the implementations to compare.

Frozen values, checked when they are made, before torch is imported.
"""

from __future__ import annotations

from itertools import product
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from benchmarker.schema.base import DType, Plain
from benchmarker.schema.experiment import ExperimentBase, GridBase, Positive, VariantBase
from benchmarker.schema.job import Job

Mode = Literal["forward", "forward_backward"]
FeatureMap = Literal["identity", "elu"]
ELEMENT_BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


class MixersSubject(Plain):
    """The shapes of one layer, the same for every mixer."""

    heads: Positive = 16
    """Heads of queries, keys and values."""
    head_dim: Positive = 128
    """Numbers of a query and of a key."""
    value_dim: Positive | None = None
    """Numbers of a value. As many as head_dim if not said."""
    dtype: DType = "bfloat16"
    """Type of all inputs but the logarithms of gates: float32, bfloat16 or float16."""
    feature_map: FeatureMap = "identity"
    """What linear attention does to queries and keys before the clock starts: identity, or elu (elu(x) + 1)."""
    normalize: bool = False
    """Linear attention divides by the sum of its weights, which needs the feature map elu."""
    seed: int = 0
    """Of the random inputs."""

    @model_validator(mode="after")
    def _weights_are_positive(self) -> Self:
        if self.normalize and self.feature_map == "identity":
            raise ValueError("normalize: needs feature_map elu; without one the sum of the weights may be nought")
        return self


class MixersVariant(VariantBase):
    """One implementation of one mixer."""

    variant: Annotated[str, Field(min_length=1)]
    """A name of the registry: the mixer, then the implementation, such as gdn-fla-chunk."""


class MixersPoint(NamedTuple):
    """One cell of the grid."""

    seq_len: int
    batch_size: int
    mode: Mode


class MixersGrid(GridBase):
    """Which lengths are measured, in which batch, forward or with the backward pass."""

    seq_len: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1024, 4096, 16384)
    """Positions of one sequence."""
    tokens: tuple[Positive, ...] = ()
    """Tokens of the whole batch: the batch size of a length is tokens / seq_len. Takes the place of batch_size."""
    batch_size: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1,)
    """Sequences at once."""
    mode: Annotated[tuple[Mode, ...], Field(min_length=1)] = ("forward", "forward_backward")
    """`forward` as in inference; `forward_backward` with the gradients of all inputs."""

    @model_validator(mode="after")
    def _tokens_fit(self) -> Self:
        if self.tokens and self.batch_size != (1,):
            raise ValueError("tokens: gives the batch size already; leave out batch_size or tokens")
        for tokens, seq_len in product(self.tokens, self.seq_len):
            if tokens % seq_len:
                raise ValueError(f"tokens: {tokens} is not a multiple of seq_len {seq_len}")
        return self

    def points(self) -> list[MixersPoint]:
        """Every cell, smallest first, so that running out of memory costs only the larger ones."""
        pairs = [(seq_len, tokens // seq_len) for tokens, seq_len in product(self.tokens, self.seq_len)]
        pairs = pairs or list(product(self.seq_len, self.batch_size))
        cells = [MixersPoint(seq_len, batch, mode) for (seq_len, batch), mode in product(pairs, self.mode)]
        return sorted(dict.fromkeys(cells))


class MixersExperiment(ExperimentBase):
    """A whole comparison, as a config file holds it."""

    workload: Literal["mixers"] = "mixers"
    subject: MixersSubject = MixersSubject()
    grid: MixersGrid = MixersGrid()
    variants: Annotated[tuple[MixersVariant, ...], Field(min_length=1)]


class MixersJob(Job):
    """Everything that one run is told."""

    subject: MixersSubject
    variant: MixersVariant
    grid: MixersGrid


class Shape(NamedTuple):
    """Everything that determines the work of one call."""

    batch_size: int
    seq_len: int
    heads: int
    head_dim: int
    value_dim: int
    feature_map: FeatureMap
    normalize: bool
    dtype: DType
    mode: Mode

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype]

    @property
    def is_backward(self) -> bool:
        """Whether the gradients are part of the work."""
        return self.mode == "forward_backward"

    @property
    def tokens(self) -> int:
        """Of the whole batch."""
        return self.batch_size * self.seq_len


def shape_of(subject: MixersSubject, point: MixersPoint) -> Shape:
    """The work of one cell."""
    return Shape(
        batch_size=point.batch_size,
        seq_len=point.seq_len,
        heads=subject.heads,
        head_dim=subject.head_dim,
        value_dim=subject.value_dim or subject.head_dim,
        feature_map=subject.feature_map,
        normalize=subject.normalize,
        dtype=subject.dtype,
        mode=point.mode,
    )
