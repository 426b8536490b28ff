"""Specification of the mixers workload: shapes of one layer and of a small model, the grid, and the tasks."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from benchmarker.checkpoints.files import shipped_text
from benchmarker.core.formatting import plural
from benchmarker.schema.base import DType, Plain
from benchmarker.schema.job import ExperimentBase, Job, Positive, VariantBase
from benchmarker.workloads.operation.spec import ELEMENT_BYTES, LengthGrid, LengthPoint

MixerMode = Literal["forward", "forward_backward", "training_step"]
FeatureMap = Literal["identity", "elu"]
TaskName = Literal["mqar", "copy", "bytes"]

TRAINING_SHARE = 0.9  # Share of the shipped text, from its start, for training in the task bytes. The rest is held out.


@cache
def shipped_bytes() -> bytes:
    return shipped_text("evaluation.txt").encode()


def training_bytes() -> int:
    return int(TRAINING_SHARE * len(shipped_bytes()))


def held_out_bytes() -> int:
    return len(shipped_bytes()) - training_bytes()


class MixersBlock(Plain):
    hidden: Positive = 256
    """Width of the model; the mixer's width is heads * head_dim."""
    layers: Positive = 4
    """Number of blocks; a block is norm, mixer, norm, MLP."""
    vocabulary: Annotated[int, Field(gt=1)] = 256
    """Vocabulary size of the model whose training step is timed."""
    short_conv: bool = False
    """Causal convolution over 4 positions after queries, keys and values, the same for every mixer."""
    match: Literal["parameters", "width"] = "parameters"
    """Quantity that is equal for all mixers: parameters (by the MLP's width), or width of the MLP (4 * hidden)."""


class MixersTasks(Plain):
    """Tasks on which models of each mixer are trained from fresh weights, once per seed."""

    names: tuple[TaskName, ...] = ()
    """Names of tasks: mqar (recall of values by their keys), copy, bytes (the shipped text, byte by byte)."""
    pairs: Annotated[tuple[Positive, ...], Field(min_length=1)] = (4, 16)
    """Key-value pairs in a sequence of mqar, whose length is 8 * pairs."""
    copied: Annotated[tuple[Positive, ...], Field(min_length=1)] = (16,)
    """Tokens to copy; the length of a sequence is 2 * copied."""
    text_len: Positive = 256
    """Bytes in a sequence of the task bytes."""
    vocabulary: Annotated[int, Field(ge=4)] = 64
    """Vocabulary size of mqar and copy."""
    steps: Positive = 500
    """Training steps, equal for all mixers. The task bytes stops after four passes over the text."""
    batch_size: Positive = 64
    """Sequences per step."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Constant learning rate of AdamW."""
    seeds: Positive = 3
    """Number of trainings, each with its own initial weights and order of data."""

    @model_validator(mode="after")
    def _check_vocabulary(self) -> Self:
        if "mqar" in self.names and (most := max(self.pairs)) > self.vocabulary // 2 - 1:
            raise ValueError(f"vocabulary: {self.vocabulary} tokens have no {most} keys; give {2 * most + 2} or more")
        return self


class MixersSubject(Plain):
    heads: Positive = 16
    """Heads of queries, keys and values."""
    head_dim: Positive = 128
    """Width of a query and of a key."""
    value_dim: Positive | None = None
    """Width of a value. Default: head_dim."""
    dtype: DType = "bfloat16"
    """Type of all inputs except the log decays: float32, bfloat16 or float16."""
    feature_map: FeatureMap = "identity"
    """Feature map of linear attention, applied to queries and keys before timing: identity, or elu (elu(x) + 1)."""
    normalize: bool = False
    """Divide the output of linear attention by the sum of its weights; requires the feature map elu."""
    seed: int = 0
    """Seed of the random inputs."""
    block: MixersBlock = MixersBlock()
    tasks: MixersTasks = MixersTasks()

    @model_validator(mode="after")
    def _check_normalization(self) -> Self:
        if self.normalize and self.feature_map == "identity":
            raise ValueError("normalize: needs feature_map elu; without one the sum of the weights may be zero")
        return self


class MixersVariant(VariantBase):
    variant: Annotated[str, Field(min_length=1)]
    """Name of the mixer, then of its implementation, such as gdn-fla-chunk."""


class MixersGrid(LengthGrid):
    mode: Annotated[tuple[MixerMode, ...], Field(min_length=1)] = ("forward", "forward_backward")
    """`forward`, `forward_backward`: the mixer alone; `training_step`: a small language model with the mixer."""


class MixersExperiment(ExperimentBase):
    workload: Literal["mixers"] = "mixers"
    subject: MixersSubject = MixersSubject()
    grid: MixersGrid = MixersGrid()
    variants: Annotated[tuple[MixersVariant, ...], Field(min_length=1)]


class MixersJob(Job):
    subject: MixersSubject
    variant: MixersVariant
    grid: MixersGrid

    @property
    def title(self) -> str:
        subject = self.subject
        values = f" with values of {subject.value_dim}" if subject.value_dim not in (None, subject.head_dim) else ""
        return f"mixers of {plural(subject.heads, 'head', 'heads')} of {subject.head_dim}{values}"

    @property
    def is_judged(self) -> bool:
        return bool(self.subject.tasks.names) and (self.part is None or self.part.only == "quality")


class MixerShape(NamedTuple):
    batch_size: int
    seq_len: int
    heads: int
    head_dim: int
    value_dim: int
    feature_map: FeatureMap
    normalize: bool
    dtype: DType
    mode: str

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype]

    @property
    def is_backward(self) -> bool:
        return self.mode != "forward"

    @property
    def tokens(self) -> int:
        return self.batch_size * self.seq_len


def shape_of(subject: MixersSubject, point: LengthPoint) -> MixerShape:
    layer = subject.model_dump(include={"heads", "head_dim", "feature_map", "normalize", "dtype"})
    return MixerShape(**point._asdict(), **layer, value_dim=subject.value_dim or subject.head_dim)
