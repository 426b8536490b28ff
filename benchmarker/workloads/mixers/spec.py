"""What is asked of token mixers: the shapes of one layer and of a small model, the lengths to measure, and the tasks.

Frozen values, checked when they are made, before torch is imported.
"""

from __future__ import annotations

from itertools import product
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from benchmarker.schema.base import DType, Plain
from benchmarker.schema.experiment import ExperimentBase, Positive, VariantBase
from benchmarker.schema.job import Job
from benchmarker.workloads.attention.spec import LengthGrid

Mode = Literal["forward", "forward_backward", "training_step"]
FeatureMap = Literal["identity", "elu"]
TaskName = Literal["mqar", "copy", "bytes"]
ELEMENT_BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


class MixersBlock(Plain):
    """A small language model around the mixer: for the mode training_step, and for the tasks."""

    hidden: Positive = 256
    """Width of the model; the mixer's own is heads * head_dim."""
    layers: Positive = 4
    """Blocks of a mixer and a feed-forward, each after a norm."""
    vocabulary: Annotated[int, Field(gt=1)] = 256
    """Tokens of the model whose training step is timed."""
    short_conv: bool = False
    """A causal convolution over 4 positions after queries, keys and values, for every mixer alike."""
    match: Literal["parameters", "width"] = "parameters"
    """What is equal: parameters (the feed-forward's width is chosen for it), or width (4 * hidden in all)."""


class MixersTasks(Plain):
    """What models of this mixer are trained on, from fresh weights, once for each seed."""

    names: tuple[TaskName, ...] = ()
    """mqar (recall of values by their keys), copy, bytes (the shipped text, byte by byte)."""
    pairs: Annotated[tuple[Positive, ...], Field(min_length=1)] = (4, 16)
    """Of keys and values in a sequence of mqar, which is 8 times as long."""
    copied: Annotated[tuple[Positive, ...], Field(min_length=1)] = (16,)
    """Tokens of a sequence of copy, which is twice as long."""
    text_len: Positive = 256
    """Bytes of a sequence of bytes."""
    vocabulary: Annotated[int, Field(ge=4)] = 64
    """Tokens of mqar and copy."""
    steps: Positive = 500
    """Training steps, the same for every mixer. The task bytes has no more than four passes over the text."""
    batch_size: Positive = 64
    """Sequences of a step."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Of AdamW, constant."""
    seeds: Positive = 3
    """Trainings, each with its own weights and order of the data."""

    @model_validator(mode="after")
    def _keys_are_enough(self) -> Self:
        if "mqar" in self.names and (most := max(self.pairs)) > self.vocabulary // 2 - 1:
            raise ValueError(f"vocabulary: {self.vocabulary} tokens have no {most} keys; give {2 * most + 2} or more")
        return self


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
    block: MixersBlock = MixersBlock()
    tasks: MixersTasks = MixersTasks()

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


class MixersGrid(LengthGrid):
    """Which lengths are measured, in which batch, forward or with the backward pass."""

    mode: Annotated[tuple[Mode, ...], Field(min_length=1)] = ("forward", "forward_backward")
    """`forward` and `forward_backward` of the mixer alone; `training_step` of a small model around it."""

    def points(self) -> list[MixersPoint]:
        """Every cell, smallest first, so that running out of memory costs only the larger ones."""
        cells = [MixersPoint(seq_len, batch, mode) for (seq_len, batch), mode in product(self.sizes(), self.mode)]
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

    @property
    def is_judged(self) -> bool:
        """Whether models are trained on tasks in this process."""
        return bool(self.subject.tasks.names) and (self.part is None or self.part.only == "quality")


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
        return self.mode != "forward"

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
