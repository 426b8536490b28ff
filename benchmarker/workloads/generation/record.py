"""Record of text generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field

from benchmarker.core.formatting import GIB, gib, plural
from benchmarker.engines.registry import ENGINES
from benchmarker.measure.clock import GenerationSample
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.base import Count, Number, Positive, Scalar, Split, Whole
from benchmarker.schema.model import EngineFacts, LoadFacts, ModelFacts, StepFacts
from benchmarker.schema.quality import Quality, StepDivergence, TaskResult, wrong_step_words
from benchmarker.schema.record import CellBase, Demand, Missing, Profile, RunRecord, VariantFacts

NO_TOKENIZER = "random ids (no tokenizer)"


class GenerationDemand(Demand):
    """Least work of one cell, from the loaded tensors.

    With tensor parallelism, the numbers are those of one GPU; with layers on several GPUs, they are totals.
    """

    weight_bytes: Positive
    """Bytes of weights read by every decode step: scales, output layer and norms included, with one row of the
    embedding per sequence. Shared storage counts once."""
    kv_bytes_per_token: Whole
    """KV cache of one position of one sequence, bytes."""
    context_tokens: Number
    """Number of positions in the cache before a decode step, mean over the steps."""
    kv_bytes: Count
    """Bytes of KV cache and recurrent states that a decode step reads, mean over the steps, all sequences together."""
    decode_flops: Count
    """FLOPs of a decode step, mean over the steps, all sequences together."""
    prefill_flops: Positive
    """FLOPs of the prefill, with logits only for the last position."""
    state_bytes: Whole | None = None
    """Bytes of one sequence's states in linear attention, state-space models and convolutions. None without states."""
    experts: Positive | None = None
    """Number of routed experts in an MoE layer. None without MoE layers."""
    experts_per_step: Number | None = None
    """Number of routed experts that a decode step reads in an MoE layer, mean over layers and steps."""
    copied_bytes: Count | None = None
    """Bytes that a step writes and reads again because uncompiled code copies experts. `step_bytes` excludes them."""

    @property
    def step_bytes(self) -> int:
        """Bytes that a decode step reads: weights, KV cache and states."""
        return self.weight_bytes + self.kv_bytes


class GenerationCell(CellBase):
    prompt_tokens: Positive
    new_tokens: Positive
    batch_size: Positive
    depth: Count = 0
    """Tokens in the KV cache before the prompt. The cache was filled before the clock started."""
    text: Count | None = None
    """Index of the prompt text, from 0. None if the prompt is given by its length."""
    distinct_prompts: Positive = 1
    """Number of different (context, prompt) pairs in the batch. 1 if all sequences have the same prompt, as in records
    without this field."""
    inputs_sha256: str | None = None
    """SHA-256 of the token ids, context then prompt, as decimals separated by commas; different sequences are separated
    by semicolons. It is the same for every variant of a comparison."""
    prompt_source: str | None = None
    """Source of the token ids: the shipped text, a given text, or random ids if there is no tokenizer."""
    warmup: tuple[GenerationSample, ...] = ()
    samples: tuple[GenerationSample, ...] = ()
    step: StepFacts | None = None
    """Facts about the decode step of the cell. None for the eager engine and in older records."""
    first_tokens: tuple[Whole, ...] = ()
    """First new tokens of the first sequence, at most 64."""
    demand: GenerationDemand | None = None
    """Least work of the cell. None in older records."""

    @property
    def note(self) -> str:
        positions = self.depth + self.prompt_tokens + self.new_tokens
        cache_bytes = self.demand.kv_bytes_per_token * self.batch_size * positions if self.demand else 0
        prompts = ", distinct prompts" if self.distinct_prompts > 1 else ""
        return f"{prompts}; its KV cache needs {gib(cache_bytes)}" if cache_bytes >= GIB else prompts


class GenerationProfile(Profile):
    """One generation under torch.profiler, with the sections `prefill` and `decode`."""

    prompt_tokens: Positive
    new_tokens: Positive
    batch_size: Positive
    depth: Count | None = None
    """Tokens in the KV cache before the prompt. None in older records."""
    distinct_prompts: Positive = 1
    """Number of different (context, prompt) pairs in the batch."""

    @property
    def subject(self) -> str:
        batch = f", batch of {self.batch_size}" if self.batch_size > 1 else ""
        prompts = ", distinct prompts" if self.distinct_prompts > 1 else ""
        tokens = plural(self.new_tokens, "new token", "new tokens")
        return f"generation, prompt of {self.prompt_tokens}, {tokens}{batch}{prompts}"


class GenerationVariant(VariantFacts):
    quant: str
    engine: str
    """Name of the engine."""
    engine_options: dict[str, Scalar] = Field(default_factory=dict)
    """All engine options, defaults included. Empty for an engine without options."""
    gpus: Positive = 1
    """Number of GPUs that shared the model; on a CPU, number of processes."""
    split: Split | None = None
    """Division of the model among GPUs: tensors or layers. None for a single GPU."""

    def form(self, dtype: str) -> dict[str, str]:
        """Return the form of a record with this variant, whose unquantized tensors have the type `dtype`."""
        both = {**self.options, **self.engine_options}
        chosen = [f"{key}={value}" for key, value in sorted(both.items()) if (key, value) not in LATER_DEFAULTS]
        return {
            "quant": self.quant,
            "engine": self.engine,
            "options": ", ".join(chosen) or "no options",
            "dtype": dtype,
            **({"gpus": f"{self.gpus} by {self.split}"} if self.split else {}),
        }


def tokens_per_step(cell: GenerationCell, sample: GenerationSample) -> float | None:
    """Return the mean number of tokens per decode step and sequence; None without speculative decoding."""
    if sample.accepted_tokens is None:
        return None
    tokens = cell.batch_size * (sample.new_tokens - 1)
    return tokens / (tokens - sample.accepted_tokens) if tokens > sample.accepted_tokens else None


LATER_DEFAULTS = (
    ("prefill", "plain"),
    ("lm_head", None),
    ("scales", "range"),
    ("kv_cache", None),
    ("speculative", None),
    ("linear_backend", None),
)
"""Options that are missing in older records, and the values with which these records were measured."""


def is_unquantized(stored_as: str, quantized_fraction: float | None) -> bool:
    """Return True if neither weights nor output layer nor KV cache are quantized.

    Args:
        stored_as: `GenerationRecord.stored_as`.
        quantized_fraction: Share of quantized weights, by which a quantized GGUF file is recognized.
    """
    return stored_as == "fp16" and not quantized_fraction


class GenerationRecord(RunRecord):
    workload: Literal["generation"] = "generation"
    model: ModelFacts
    variant: GenerationVariant
    load: LoadFacts | None = None
    engine: EngineFacts | None = None
    text_tokens: tuple[Whole, ...] = ()
    """Number of tokens of each text prompt, recorded before the first cell."""
    cells: tuple[GenerationCell, ...] = ()
    profile: GenerationProfile | None = None
    no_demand: Missing | None = None
    """Reason why cells have no `demand`, and therefore no floor and no memory-bandwidth utilization."""
    step_divergence: StepDivergence | None = None
    """Comparison of the timed step with the variant's own forward pass. None if another process of the sweep compared
    them, if the engine has no forward pass to compare, and in older records."""
    no_step_divergence: Missing | None = None
    """Reason why the timed step could not be compared."""
    quality: Quality | None = None
    no_quality: Missing | None = None
    """Reason why requested quality is missing."""
    tasks: tuple[TaskResult, ...] = ()
    """Answers to benchmark questions."""
    no_tasks: Missing | None = None
    """Reason why requested answers to benchmark questions are missing."""

    @property
    def setup_s(self) -> float | None:
        return self.engine.setup_s if self.engine else None

    @property
    def knows_subject(self) -> bool:
        return self.load is not None or any(cell.status == "ok" for cell in self.cells)

    @property
    def subject_name(self) -> str:
        return self.model.id

    @property
    def stored_as(self) -> str:
        """Storage of weights, output layer and KV cache: `fp16`, `gptq lm_head=int8`, `fp16 kv_cache=fp8`. Speculative
        decoding is added (`fp16 speculative=ngram:5`), so that it is never the unquantized baseline."""
        variant = self.variant
        chosen = {"lm_head": variant.options.get("lm_head")}
        chosen |= {name: variant.engine_options.get(name) for name in ("kv_cache", "speculative")}
        return " ".join([variant.quant, *(f"{name}={value}" for name, value in chosen.items() if value)])

    @property
    def form(self) -> dict[str, str]:
        return self.variant.form(self.model.dtype)

    @property
    def family(self) -> str:
        """Name of the quantization; for llama.cpp, name of the GGUF format."""
        gguf = self.variant.engine_options.get("gguf", "F16")
        return self.variant.quant if gguf == "F16" else str(gguf)

    @property
    def baseline_rank(self) -> tuple[bool, ...]:
        """Rank as a baseline: fp16 first, and among fp16 variants the eager engine."""
        is_plain = is_unquantized(self.stored_as, self.load.quantized_fraction if self.load else None)
        return is_plain, is_plain and self.variant.engine == "eager"

    @property
    def family_place(self) -> int:
        """Index of the engine in the registry; the largest index for an unknown name."""
        return [*ENGINES, self.variant.engine].index(self.variant.engine)

    @property
    def mixes_prefill(self) -> bool:
        return self.variant.engine in ENGINES and ENGINES[self.variant.engine].mixes_prefill

    @property
    def libraries(self) -> tuple[str, ...] | None:
        return LOADERS[self.variant.quant].packages if self.variant.quant in LOADERS else None

    @property
    def choices(self) -> dict[str, str | None]:
        """Names of the library's kernel, the decode step's kernels and the step's attention; None if unknown."""
        notes = [note for note in (self.load.notes if self.load else ()) if note.startswith("kernel ")]
        uses = self.engine.kernels_used if self.engine else ()
        return {
            "kernel": next(iter(notes), None),
            "kernels of the decode step": "; ".join(sorted(use.words() for use in uses)) or None,
            "attention": self.engine.attention if self.engine else None,
        }

    @classmethod
    def why_void(cls, records: Sequence[Self]) -> str | None:
        checked = newest_check(records)
        if checked and checked.verdict == "wrong":
            return wrong_step_words(checked)
        with_quality = [record for record in records if record.quality or record.no_quality]
        judged = max(with_quality, key=lambda record: record.started_at, default=None)
        if judged and judged.no_quality:
            return judged.no_quality.reason if judged.no_quality.error_kind == "wrong_result" else None
        return judged.quality.why_failed if judged and judged.quality else None


def newest_check(records: Sequence[GenerationRecord]) -> StepDivergence | None:
    """Return the newest check of the timed step, None if there is none. One process of a sweep makes the check."""
    newest = sorted(records, key=lambda record: record.started_at, reverse=True)
    return next((record.step_divergence for record in newest if record.step_divergence), None)
