"""What a run of fine-tuning records, beside what every workload's record has."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchmarker.schema.base import Count, Number, Plain, Positive, Spent
from benchmarker.schema.model_facts import LoadFacts, ModelFacts
from benchmarker.schema.record import CellBase, Checked, RunRecord, VariantFacts
from benchmarker.schema.roofline import Demand
from benchmarker.workloads.finetune.spec import (
    AttentionName,
    Base,
    Checkpointing,
    OptimizerName,
    Prepare,
    RecipeName,
    Train,
)
from benchmarker.workloads.training.record import StepMemory, TrainingSample


class FinetuneDemand(Demand):
    """Arithmetic of one step, by formula. `flops` is what the step needs: that of MFU."""

    flops: Positive
    """Forward and backward: 4 per frozen and 6 per trained weight of a linear layer and token, and 3.5 times the
    attention's forward pass."""
    linear_flops: Positive
    """Of the linear layers alone."""
    recompute_flops: Count
    """What gradient checkpointing computes a second time; 0 without it. HFU counts it, MFU does not."""
    tokens: Positive
    """Of one step: batch_size * seq_len * accumulate."""


class FinetuneChecked(Checked):
    """What the gradients were held against before anything was timed. `error` is 1 - cosine, over all trained weights
    of the first layers, against the same in float32 written without peft, bitsandbytes' kernels and checkpointing."""

    layers: Positive
    """First layers of the model that were compared."""
    positions: Positive
    """Length of the one sequence."""
    plain_error: Spent
    """1 - cosine of that reference in bfloat16: what the type alone costs. A row is wrong where its error is above the
    tolerance and above twice this."""
    loss: Number
    """Of those layers."""
    reference_loss: Number
    """The same in float32."""


class FinetuneCell(CellBase):
    """One length, batch size and number of micro-batches."""

    seq_len: Positive
    batch_size: Positive
    accumulate: Positive
    inputs_sha256: str | None = None
    """Of the token ids of all batches that the steps take turns over."""
    input_source: str | None = None
    """Where the ids came from: the shipped text, or random ids where there is no tokenizer."""
    demand: FinetuneDemand | None = None
    checked: FinetuneChecked | None = None
    step_memory: StepMemory | None = None
    """Of one untimed step."""
    losses: tuple[Number, ...] = ()
    """Of the first micro-batch of the first step and of the last timed one: proof that numbers came out, not a
    curve. They are of different texts."""
    warmup: tuple[TrainingSample, ...] = ()
    samples: tuple[TrainingSample, ...] = ()


class DTypes(Plain):
    """Types that were seen while a step ran, as torch names them."""

    head_input: str | None = None
    """Of what the output layer multiplies."""
    head_weight: str | None = None
    attention_query: str | None = None
    """Of the queries of scaled_dot_product_attention. None for eager attention."""
    norm_weight: str | None = None
    trained: str | None = None
    """Of the trained weights."""
    optimizer_state: str | None = None
    """Of the optimizer's moments."""


class Learned(Plain):
    """Whether the recipe learns: loss on text that it was not trained on, before and after some steps."""

    steps: Positive
    learning_rate: Number
    before: Number
    """Of the untrained adapters: the same for every seed."""
    after: tuple[Number, ...]
    """One a seed; a seed draws the adapters' first values and the order of the text."""
    seeds: tuple[int, ...]


class FinetuneFacts(Plain):
    """What was built from the loaded model."""

    trained_parameters: Positive
    trained_linear_weights: Positive
    """Those that are a matrix of a product: 6 operations a token."""
    frozen_linear_weights: Count
    """Weights of linear layers that are not trained: 4 operations a token."""
    checkpointed_linear_weights: Count
    """Frozen and trained, of the layers that are checkpointed."""
    weight_bytes: Positive
    """Unique storages of all that is not trained: frozen weights with their scales."""
    trained_bytes: Positive
    """Trained weights, their gradients and the optimizer's state, from the tensors' sizes after a step."""
    adapted_layers: Count
    """Linear layers with an adapter."""
    dequantize_calls: Count | None = None
    """Expected calls that unpack a weight, a micro-batch: twice for each quantized layer, and once more with
    checkpointing. None where nothing is quantized in 4 bits."""
    dtypes: DTypes = DTypes()
    frozen_sha256: str | None = None
    """Of the frozen weights' bytes before the first step."""
    frozen_unchanged: bool | None = None
    """Whether the frozen weights have the same bytes after the last timed step. None where nothing is frozen."""
    peft: str | None = None
    """Its version. None where it is not used."""


class FinetuneVariantFacts(VariantFacts):
    """Which recipe, with every switch."""

    variant: RecipeName
    base: Base
    train: Train
    checkpointing: Checkpointing
    prepare: Prepare
    optimizer: OptimizerName
    attention: AttentionName
    rank: Positive | None = None
    """None where no adapter is trained."""
    targets: str | None = None


class FinetuneRecord(RunRecord):
    """One process, one variant of training one model."""

    workload: Literal["finetune"] = "finetune"
    model: ModelFacts
    variant: FinetuneVariantFacts
    load: LoadFacts | None = None
    built: FinetuneFacts | None = None
    base_loss: Number | None = None
    """Of the unquantized base on the first 2,048 tokens of the text, where the weights are real."""
    first_loss: Number | None = None
    """Of this variant on the same tokens, before any step."""
    learned: Learned | None = None
    """None for random weights, and where another process of the sweep finds out."""
    cells: tuple[FinetuneCell, ...] = Field(default=())
