"""What is asked of fine-tuning: the model, how it is trained, and the lengths and batches to measure.

Frozen values, checked when they are made, before torch is imported or a byte is downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from benchmarker.schema.base import DType, Plain
from benchmarker.schema.experiment import ExperimentBase, GridBase, Positive, VariantBase
from benchmarker.schema.job import Job
from benchmarker.schema.model import ModelSpec, QuantSpec

RecipeName = Literal["full", "lora", "qlora", "qlora-bf16", "qlora-nocheckpoint"]
Base = Literal["plain", "nf4", "nf4-double", "int8"]
Train = Literal["full", "lora"]
Checkpointing = Literal["none", "all"]
Prepare = Literal["peft", "keep", "autocast"]
OptimizerName = Literal["adamw", "adamw-fused", "adamw8bit", "paged-adamw8bit"]
AttentionName = Literal["sdpa", "eager"]

QUANTS: dict[Base, QuantSpec] = {
    "plain": QuantSpec(quant="fp16"),
    "nf4": QuantSpec(quant="bnb4", options={"quant_type": "nf4"}),
    "nf4-double": QuantSpec(quant="bnb4", options={"quant_type": "nf4", "double_quant": True}),
    "int8": QuantSpec(quant="bnb8"),
}
"""The loader of each base; `fp16` is the one that quantizes nothing, whatever the 16-bit type."""
ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class Recipe:
    """Every switch of a variant, decided."""

    base: Base
    train: Train
    prepare: Prepare
    checkpointing: Checkpointing = "all"
    optimizer: OptimizerName = "adamw-fused"
    attention: AttentionName = "sdpa"
    rank: int = 16
    targets: str = ALL_LINEAR

    @property
    def quant(self) -> QuantSpec:
        """How the base's weights are stored."""
        return QUANTS[self.base]

    @property
    def is_quantized(self) -> bool:
        return self.base != "plain"


RECIPES: dict[RecipeName, Recipe] = {
    "full": Recipe("plain", "full", "keep"),
    "lora": Recipe("plain", "lora", "keep"),
    "qlora": Recipe("nf4", "lora", "peft"),
    "qlora-bf16": Recipe("nf4", "lora", "keep"),
    "qlora-nocheckpoint": Recipe("nf4", "lora", "peft", checkpointing="none"),
}


class TrainedModel(ModelSpec):
    """Where the weights come from, and the type that they are trained in."""

    dtype: DType = "bfloat16"
    """Type of what is not quantized: bfloat16, or float32 on a processor, whose 16-bit backward pass is emulated."""


class FinetuneSubject(Plain):
    """The model, and what it is fed with."""

    model: TrainedModel = TrainedModel()
    seed: int = 0
    """Of the adapters' first values, and of random tokens where the model has no tokenizer."""


class FinetuneSubjectAsked(FinetuneSubject):
    """The same, with what changes no number of a record."""

    profile_rows: Positive = 30
    """Rows of the profile that is printed after a run."""


class FinetuneVariant(VariantBase):
    """A recipe, and the switches in which this variant differs from it."""

    variant: RecipeName
    """The recipe: full, lora, qlora, qlora-bf16 (nothing is left in float32) or qlora-nocheckpoint."""
    base: Base | None = None
    """How the frozen weights are stored: plain (in the model's type), nf4, nf4-double (scales quantized too) or int8.
    The recipe's if not said, as for every switch below."""
    train: Train | None = None
    """What is trained: full (every weight) or lora (adapters alone)."""
    checkpointing: Checkpointing | None = None
    """Which layers run their forward pass again in the backward pass, in place of keeping its results: none or all."""
    prepare: Prepare | None = None
    """What becomes of the weights that are not quantized: peft (prepare_model_for_kbit_training, which makes them
    float32), keep (they stay, and float32 adapters are multiplied in the model's type by autocast), or autocast
    (peft's, and products in the model's type by autocast)."""
    optimizer: OptimizerName | None = None
    """adamw, adamw-fused, adamw8bit or paged-adamw8bit (both of bitsandbytes)."""
    attention: AttentionName | None = None
    """Attention of the model, as transformers calls it: sdpa or eager."""
    rank: Positive | None = None
    """Of the adapters."""
    targets: Annotated[str, Field(min_length=1)] | None = None
    """Linear layers that get an adapter: all-linear (all but the output layer), or their names joined by commas."""

    @property
    def recipe(self) -> Recipe:
        """Every switch, decided."""
        switches = self.model_dump(exclude={"name", "variant"}, exclude_none=True)
        return replace(RECIPES[self.variant], **switches)


class FinetunePoint(NamedTuple):
    """One cell of the grid."""

    seq_len: int
    batch_size: int
    accumulate: int


class FinetuneGrid(GridBase):
    """Which steps are measured: every length with every batch size."""

    seq_len: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)] = (1024,)
    """Tokens of one sequence, 2 at least: each but the first is predicted. There is no padding."""
    batch_size: Annotated[tuple[Positive, ...], Field(min_length=1)] = (4,)
    """Sequences of one micro-batch."""
    accumulate: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1,)
    """Micro-batches of one step."""

    def points(self) -> list[FinetunePoint]:
        """Every cell, smallest first, so that running out of memory costs only the larger ones."""
        cells = [FinetunePoint(*axes) for axes in product(self.seq_len, self.batch_size, self.accumulate)]
        return sorted(dict.fromkeys(cells), key=lambda point: (point.seq_len * point.batch_size, point))


class FinetuneExperiment(ExperimentBase):
    """A whole comparison, as a config file holds it."""

    workload: Literal["finetune"] = "finetune"
    subject: FinetuneSubject = FinetuneSubject()
    grid: FinetuneGrid = FinetuneGrid()
    variants: Annotated[tuple[FinetuneVariant, ...], Field(min_length=1)]


class FinetuneJob(Job):
    """Everything that one run is told."""

    subject: FinetuneSubjectAsked
    variant: FinetuneVariant
    grid: FinetuneGrid

    @property
    def model(self) -> TrainedModel:
        return self.subject.model

    @property
    def recipe(self) -> Recipe:
        return self.variant.recipe
