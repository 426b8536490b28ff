"""Specification of the finetune workload: the model, the recipes to compare, and the grid."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from benchmarker.schema.base import DType, Plain
from benchmarker.schema.job import ExperimentBase, GridBase, Job, Positive, VariantBase
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
"""Loader of each base. The loader `fp16` quantizes nothing; the type may also be bfloat16 or float32."""
ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class Recipe:
    """All switches of a variant, with the recipe's defaults filled in."""

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
    dtype: DType = "bfloat16"
    """Type of weights that are not quantized: bfloat16; or float32 for a CPU, which emulates 16-bit backward passes."""


class FinetuneSubject(Plain):
    model: TrainedModel = TrainedModel()
    seed: int = 0
    """Seed of the adapters' initial values, and of random tokens if the model has no tokenizer."""


class FinetuneSubjectAsked(FinetuneSubject):
    profile_rows: Positive = 30
    """Number of rows in the profile that is printed after a run."""


class FinetuneVariant(VariantBase):
    variant: RecipeName
    """Recipe: full, lora, qlora, qlora-bf16 (nothing stays in float32) or qlora-nocheckpoint."""
    base: Base | None = None
    """Storage of the frozen weights: plain (the model's type), nf4, nf4-double (scales quantized too) or int8. The
    default of this and every following switch is set by the recipe."""
    train: Train | None = None
    """Trained weights: full (all) or lora (adapters only)."""
    checkpointing: Checkpointing | None = None
    """Gradient checkpointing, which repeats the forward pass of layers instead of keeping activations: none or all."""
    prepare: Prepare | None = None
    """Treatment of weights that are not quantized: peft (prepare_model_for_kbit_training, which makes them float32),
    keep (unchanged; autocast multiplies float32 adapters in the model's type), or autocast (as peft, but autocast
    computes products in the model's type)."""
    optimizer: OptimizerName | None = None
    """adamw, adamw-fused, adamw8bit or paged-adamw8bit (the last two from bitsandbytes)."""
    attention: AttentionName | None = None
    """Attention implementation of transformers: sdpa or eager."""
    rank: Positive | None = None
    """Rank of the adapters."""
    targets: Annotated[str, Field(min_length=1)] | None = None
    """Linear layers with an adapter: all-linear (all but the output layer), or names joined by commas."""

    @property
    def recipe(self) -> Recipe:
        return replace(RECIPES[self.variant], **self.model_dump(exclude={"name", "variant"}, exclude_none=True))


class FinetunePoint(NamedTuple):
    seq_len: int
    batch_size: int
    accumulate: int


class FinetuneGrid(GridBase):
    seq_len: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)] = (1024,)
    """Tokens of one sequence, at least 2, because all tokens but the first are predicted. There is no padding."""
    batch_size: Annotated[tuple[Positive, ...], Field(min_length=1)] = (4,)
    """Sequences per micro-batch."""
    accumulate: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1,)
    """Micro-batches per step."""

    def combinations(self) -> list[FinetunePoint]:
        cells = {FinetunePoint(*axes) for axes in product(self.seq_len, self.batch_size, self.accumulate)}
        return sorted(cells, key=lambda point: (point.seq_len * point.batch_size, point))


class FinetuneExperiment(ExperimentBase):
    workload: Literal["finetune"] = "finetune"
    subject: FinetuneSubject = FinetuneSubject()
    grid: FinetuneGrid = FinetuneGrid()
    variants: Annotated[tuple[FinetuneVariant, ...], Field(min_length=1)]


GUESSED_TOKENS_PER_S = 10_000  # Training speed of a 4B model on a fast GPU, to estimate the duration of a run.


class FinetuneJob(Job):
    subject: FinetuneSubjectAsked
    variant: FinetuneVariant
    grid: FinetuneGrid

    @property
    def source(self) -> ModelSpec:
        return self.model

    @property
    def model(self) -> TrainedModel:
        return self.subject.model

    @property
    def title(self) -> str:
        return f"fine-tuning {self.model.id}"

    @property
    def matmul_dtype(self) -> str:
        return self.model.dtype

    def repeat_s(self, point: FinetunePoint) -> float:
        # Each repeat runs two steps: one undivided, one with its parts timed.
        return 2 * point.batch_size * point.seq_len * point.accumulate / GUESSED_TOKENS_PER_S
