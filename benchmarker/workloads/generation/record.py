"""A record of text generation: its samples, cells and facts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchmarker.schema.engine_facts import EngineFacts, StepFacts
from benchmarker.schema.model_facts import LoadFacts, ModelFacts
from benchmarker.schema.profile import Profile
from benchmarker.schema.quality import Quality, TaskResult
from benchmarker.schema.record import CellBase, Missing, RunRecord, SampleBase, VariantFacts
from benchmarker.schema.roofline import Demand


class GenerationSample(SampleBase):
    """One timed generation: from the call to the last token."""

    ttft_s: float | None = Field(default=None, gt=0)
    """Time to first token: from the call until the first new token is known."""
    tpot_s: float | None = Field(default=None, gt=0)
    """Time per output token after the first: (last token - first token) / (tokens - 1). None for a single token."""
    new_tokens: int = Field(ge=0)
    """Tokens made per sequence, counted in the output."""


class GenerationDemand(Demand):
    """What the work of one cell cannot do without, counted from the loaded tensors."""

    weight_bytes: int
    """Read by every decode step: weights with their scales, the output layer, norms, one row of the embedding a
    sequence. Shared storage counts once."""
    kv_bytes_per_token: int
    """KV cache of one position of one sequence."""
    context_tokens: float
    """Positions in the cache before a step, mean over the decode steps."""
    kv_bytes: int
    """KV cache read by a mean decode step, all sequences together."""
    decode_flops: int
    """Of a mean decode step, all sequences together."""
    prefill_flops: int
    """Of the prompt, with logits for its last position alone."""

    @property
    def step_bytes(self) -> int:
        """All that a decode step reads; it makes one token of each sequence."""
        return self.weight_bytes + self.kv_bytes


class GenerationCell(CellBase):
    """One point of the grid."""

    prompt_tokens: int = Field(ge=1)
    new_tokens: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    depth: int = Field(default=0, ge=0)
    """Tokens that were in the KV cache already when the prompt came, put there before the clock started."""
    text: int | None = Field(default=None, ge=0)
    """Which of the texts that were asked for the prompt is, from 0. None for a prompt of a length."""
    inputs_sha256: str | None = None
    """Of the token ids (those of the depth, then the prompt's), comma-separated decimals: the same for every variant
    of a comparison."""
    prompt_source: str | None = None
    """Where the ids came from: the shipped text, a text that was given, or random ids where there is no tokenizer."""
    warmup: tuple[GenerationSample, ...] = ()
    samples: tuple[GenerationSample, ...] = ()
    step: StepFacts | None = None
    """None for `generate`, which has none ready, and in records from before each cell said so."""
    first_tokens: tuple[int, ...] = ()
    """The first new tokens of the first sequence, at most 64."""
    demand: GenerationDemand | None = None
    """What the cell's work cannot do without. None in records from before this was counted."""


class GenerationProfile(Profile):
    """One generation under torch.profiler. Its sections are `prefill`, and `decode` from the first token on."""

    prompt_tokens: int
    new_tokens: int
    batch_size: int
    depth: int | None = None
    """Tokens in the cache before the prompt. None in records from before it was kept."""


class GenerationVariant(VariantFacts):
    """Which form of the model."""

    quant: str
    runtime: str


class GenerationRecord(RunRecord):
    """One process, one variant of a model that generates text."""

    workload: Literal["generation"] = "generation"
    model: ModelFacts
    variant: GenerationVariant
    load: LoadFacts | None = None
    engine: EngineFacts | None = None
    text_tokens: tuple[int, ...] = ()
    """Lengths of the texts that were asked for, known before the first cell."""
    cells: tuple[GenerationCell, ...] = ()
    profile: GenerationProfile | None = None
    quality: Quality | None = None
    no_quality: Missing | None = None
    """Why there is none although it was asked for."""
    tasks: tuple[TaskResult, ...] = ()
    """Answers to benchmark questions, where they were asked."""
    no_tasks: Missing | None = None
    """Why there are none although they were asked for."""
