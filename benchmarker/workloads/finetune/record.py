"""Record of the finetune workload."""

from __future__ import annotations

from typing import Literal

from benchmarker.schema.base import Count, Number, Plain, Positive, Spent
from benchmarker.schema.model import LoadFacts, ModelFacts
from benchmarker.schema.record import CellBase, Checked, Demand, RunRecord, VariantFacts
from benchmarker.workloads.finetune import spec
from benchmarker.workloads.training_step import StepMemory, TrainingSample


class FinetuneDemand(Demand):
    flops: Positive
    """Model FLOPs of a step, as in MFU: per token, 4 for each frozen and 6 for each trained weight of a linear layer;
    and 3.5 times attention's forward pass."""
    linear_flops: Positive
    """FLOPs of the linear layers."""
    recompute_flops: Count
    """FLOPs that gradient checkpointing repeats; 0 if it is off. HFU counts them, MFU does not."""
    tokens: Positive
    """Tokens of one step: batch_size * seq_len * accumulate."""


class FinetuneChecked(Checked):
    """Comparison of the gradients with a float32 reference, before timing. `error` is 1 - cosine over all trained
    weights of the first layers. The reference uses neither peft, nor bitsandbytes' kernels, nor checkpointing."""

    layers: Positive
    """Number of compared layers, the first of the model."""
    positions: Positive
    """Length of the compared sequence."""
    plain_error: Spent
    """1 - cosine for the reference in the model's type: the error that the type alone causes. A variant is wrong if its
    error is above the tolerance and above twice `plain_error`."""
    loss: Number
    """Loss of the model cut to the compared layers."""
    reference_loss: Number
    """Loss of the float32 reference."""


class FinetuneCell(CellBase):
    seq_len: Positive
    batch_size: Positive
    accumulate: Positive
    inputs_sha256: str | None = None
    """SHA-256 of the token ids of all batches; the steps alternate over the batches."""
    input_source: str | None = None
    """Source of the token ids: the shipped text, or random ids if the model has no tokenizer."""
    demand: FinetuneDemand | None = None
    checked: FinetuneChecked | None = None
    step_memory: StepMemory | None = None
    """Memory of one untimed step."""
    losses: tuple[Number, ...] = ()
    """Loss of the first micro-batch in the first step and in the last timed step. The values show that losses are
    finite, not that the model learns, because the two texts differ."""
    warmup: tuple[TrainingSample, ...] = ()
    samples: tuple[TrainingSample, ...] = ()


class DTypes(Plain):
    """Types during a step, as torch names them."""

    head_input: str | None = None
    """Type of the output layer's input."""
    head_weight: str | None = None
    attention_query: str | None = None
    """Type of the queries of scaled_dot_product_attention. None for eager attention."""
    norm_weight: str | None = None
    trained: str | None = None
    """Type of the trained weights."""
    optimizer_state: str | None = None
    """Type of the optimizer's moments."""


class Learned(Plain):
    """Loss on held-out text before and after a short training."""

    steps: Positive
    learning_rate: Number
    before: Number
    """Loss before training, equal for all seeds."""
    after: tuple[Number, ...]
    """Loss after training, one per seed."""
    seeds: tuple[int, ...]
    """Seeds of the adapters' initial values and of the position at which the text starts."""


class FinetuneFacts(Plain):
    trained_parameters: Positive
    trained_linear_weights: Positive
    """Number of trained weights of linear layers: each costs 6 FLOPs per token."""
    frozen_linear_weights: Count
    """Number of frozen weights of linear layers: each costs 4 FLOPs per token."""
    checkpointed_linear_weights: Count
    """Number of weights, frozen and trained, in layers with gradient checkpointing."""
    weight_bytes: Positive
    """Bytes of frozen weights with their scales; shared storage counts once."""
    trained_bytes: Positive
    """Bytes of trained weights, their gradients and the optimizer's state after a step."""
    adapted_layers: Count
    """Number of linear layers with an adapter."""
    dequantize_calls: Count | None = None
    """Expected dequantizations per micro-batch: two per 4-bit layer, three if it is checkpointed. None if no weight has
    4 bits."""
    dtypes: DTypes = DTypes()
    frozen_sha256: str | None = None
    """SHA-256 of the frozen weights before the first step."""
    frozen_unchanged: bool | None = None
    """True if the frozen weights are unchanged after the last timed step. None if all weights are trained."""
    peft: str | None = None
    """Version of peft. None if the recipe does not use peft."""


class FinetuneVariantFacts(VariantFacts):
    variant: spec.RecipeName
    base: spec.Base
    train: spec.Train
    checkpointing: spec.Checkpointing
    prepare: spec.Prepare
    optimizer: spec.OptimizerName
    attention: spec.AttentionName
    rank: Positive | None = None
    """Rank of the adapters. None if the recipe has no adapters."""
    targets: str | None = None


class FinetuneRecord(RunRecord):
    baseline_family = "lora"

    workload: Literal["finetune"] = "finetune"
    model: ModelFacts
    variant: FinetuneVariantFacts
    load: LoadFacts | None = None
    built: FinetuneFacts | None = None
    base_loss: Number | None = None
    """Loss of the unquantized model on the first 2,048 tokens of the text. None for random weights."""
    first_loss: Number | None = None
    """Loss of this variant before any step, on the tokens of `base_loss`."""
    learned: Learned | None = None
    """Effect of a short training. None for random weights, and if another process of the sweep measured it."""
    cells: tuple[FinetuneCell, ...] = ()

    @property
    def form(self) -> dict[str, str]:
        variant = self.variant
        switches = ("base", "train", "checkpointing", "prepare", "optimizer", "attention")
        adapters = f"rank {variant.rank}, {variant.targets}" if variant.rank else "none"
        return {**{name: getattr(variant, name) for name in switches}, "adapters": adapters}

    @property
    def family(self) -> str:
        return self.variant.variant

    @property
    def knows_subject(self) -> bool:
        return self.load is not None
