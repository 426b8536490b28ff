"""A record of text generation: its samples, cells and facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field

from benchmarker.measure.clock import GenerationSample
from benchmarker.schema.base import Count, Number, Positive, Scalar, Split, Whole
from benchmarker.schema.engine_facts import EngineFacts, StepFacts
from benchmarker.schema.model import LoadFacts, ModelFacts
from benchmarker.schema.profile import Profile
from benchmarker.schema.quality import Quality, StepDivergence, TaskResult, wrong_step_words
from benchmarker.schema.record import CellBase, Demand, Missing, RunRecord, VariantFacts


class GenerationDemand(Demand):
    """What the work of one cell cannot do without, counted from the loaded tensors.

    Where several GPUs divide every weight, it is the share of one of them: they work at once. Where they take turns, it
    is all of it."""

    weight_bytes: Positive
    """Read by every decode step: weights with their scales, the output layer, norms, one row of the embedding a
    sequence. Shared storage counts once."""
    kv_bytes_per_token: Whole
    """KV cache of one position of one sequence."""
    context_tokens: Number
    """Positions in the cache before a step, mean over the decode steps."""
    kv_bytes: Count
    """KV cache read by a mean decode step, all sequences together."""
    decode_flops: Count
    """Of a mean decode step, all sequences together."""
    prefill_flops: Positive
    """Of the prompt, with logits for its last position alone."""

    @property
    def step_bytes(self) -> int:
        """All that a decode step reads; it makes one token of each sequence."""
        return self.weight_bytes + self.kv_bytes


class GenerationCell(CellBase):
    """One point of the grid."""

    prompt_tokens: Positive
    new_tokens: Positive
    batch_size: Positive
    depth: Count = 0
    """Tokens that were in the KV cache already when the prompt came, put there before the clock started."""
    text: Count | None = None
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
    first_tokens: tuple[Whole, ...] = ()
    """The first new tokens of the first sequence, at most 64."""
    demand: GenerationDemand | None = None
    """What the cell's work cannot do without. None in records from before this was counted."""


class GenerationProfile(Profile):
    """One generation under torch.profiler. Its sections are `prefill`, and `decode` from the first token on."""

    prompt_tokens: Positive
    new_tokens: Positive
    batch_size: Positive
    depth: Count | None = None
    """Tokens in the cache before the prompt. None in older records."""

    @property
    def subject(self) -> str:
        batch = f", batch of {self.batch_size}" if self.batch_size > 1 else ""
        return f"generation, prompt of {self.prompt_tokens}, {self.new_tokens} new tokens{batch}"


class GenerationVariant(VariantFacts):
    """Which form of the model."""

    quant: str
    engine: str
    """Who made the tokens. Schema 1 had `runtime`: a step that was compiled with this program's own kernels was
    `compile` there, and is `native` here."""
    engine_options: dict[str, Scalar] = Field(default_factory=dict)
    """All of the engine's options, defaults included. Empty for an engine that has none."""
    gpus: Positive = 1
    """GPUs that shared the model; on a CPU, processes."""
    split: Split | None = None
    """How they shared it. None for one."""


class GenerationRecord(RunRecord):
    """One process, one variant of a model that generates text."""

    workload: Literal["generation"] = "generation"
    model: ModelFacts
    variant: GenerationVariant
    load: LoadFacts | None = None
    engine: EngineFacts | None = None
    text_tokens: tuple[Whole, ...] = ()
    """Lengths of the texts that were asked for, known before the first cell."""
    cells: tuple[GenerationCell, ...] = ()
    profile: GenerationProfile | None = None
    step_divergence: StepDivergence | None = None
    """Whether the step that was timed computes what the form's own forward does. None where that was checked in
    another process of the sweep, where the engine cannot be asked, and in records from before it was checked."""
    no_step_divergence: Missing | None = None
    """Why it could not be checked although the engine can be asked."""
    quality: Quality | None = None
    no_quality: Missing | None = None
    """Why there is none although it was asked for."""
    tasks: tuple[TaskResult, ...] = ()
    """Answers to benchmark questions, where they were asked."""
    no_tasks: Missing | None = None
    """Why there are none although they were asked for."""

    @property
    def knows_subject(self) -> bool:
        return self.load is not None

    @property
    def family_place(self) -> int:
        """Position of the engine in the registry."""
        from benchmarker.workloads.generation.forms import engine_place

        return engine_place(self.variant.engine)

    @property
    def libraries(self) -> tuple[str, ...] | None:
        from benchmarker.workloads.generation.forms import libraries_of

        return libraries_of(self.variant.quant)

    @property
    def choices(self) -> dict[str, str | None]:
        """Kernel that a library chose, kernels of the decode step and its attention; None if unknown."""
        notes = [note for note in (self.load.notes if self.load else ()) if note.startswith("kernel ")]
        uses = self.engine.kernels_used if self.engine else ()
        return {
            "kernel": next(iter(notes), None),
            "kernels of the decode step": "; ".join(sorted(use.words() for use in uses)) or None,
            "attention": self.engine.attention if self.engine else None,
        }

    @classmethod
    def why_void(cls, records: Sequence[Self]) -> str | None:
        """Return why the step of the variant computes something else; it is the same step in all processes."""
        checked = newest_check(records)
        return wrong_step_words(checked) if checked and checked.verdict == "wrong" else None


def newest_check(records: Sequence[GenerationRecord]) -> StepDivergence | None:
    """Return the check of the step, which is done once a sweep, in one of its processes."""
    newest = sorted(records, key=lambda record: record.started_at, reverse=True)
    return next((record.step_divergence for record in newest if record.step_divergence), None)
