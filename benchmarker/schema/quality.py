"""Quality cost of quantization in a record.

Values are in nats per token. Standard errors are over windows, not tokens: tokens of one window share their subject,
and treating them as independent would understate the error.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from benchmarker.core.formatting import decimal, percent, significant
from benchmarker.schema.base import Number, Plain, Positive, Whole

QualitySize = Literal["quick", "full"]
WINDOW_TOKENS: dict[QualitySize, int] = {"quick": 289, "full": 512}
"""Length of a window. 256 tokens are context and the last has no successor, so 32 or 255 tokens are scored."""


class Divergence(Plain):
    """Difference of a model's predictions from the baseline's, over all scored tokens."""

    ln_ratio: Number
    """ln(perplexity / baseline's perplexity), token by token on the same text. 0 means no loss."""
    ln_ratio_error: Number | None
    """Standard error of the paired difference. Null for a single window, like all standard errors."""
    kl_mean: Number
    kl_mean_error: Number | None
    kl_median: Number
    kl_90: Number
    kl_99: Number
    kl_999: Number | None = None
    """99.9th percentile of the divergence; null if fewer than 5 tokens lie beyond it."""
    kl_max: Number
    change_low: Number | None = None
    """0.1st percentile of the change in the probability of the token that follows in the text."""
    change_high: Number | None = None
    same_top: Number
    same_top_error: Number | None
    probability_rms: Number
    """Root mean square of the change in the probability of the token that follows in the text."""


class StepDivergence(Plain):
    """Difference of the timed decode step from the same variant's forward pass over the whole text."""

    steps: Positive
    text_tokens: Positive
    """Tokens of each scored text, whose first token is the prompt; at most as many as in the timed shape."""
    kl_mean: Number
    kl_max: Number
    same_top: Number
    rounding_kl_mean: Number | None = None
    """`kl_mean` of a forward that differs by rounding alone: every module's output is moved at random by up to one unit
    in the last place. In records before 2026-11-27 it is that of the library's own eager step."""
    of_engine: bool = False
    """True for an external engine, whose prompts may use other kernels than its steps."""
    of_cache: bool = False
    """True if the KV cache is quantized: `kl_mean` is its cost."""

    @property
    def expected(self) -> float:
        """Largest divergence, in nats, that counts as rounding."""
        return max(STEP_ROUNDING, STEP_FACTOR * (self.rounding_kl_mean or 0.0))

    @property
    def verdict(self) -> Literal["equal", "differs", "wrong", "cache"]:
        """`equal`: rounding alone. `wrong`: more than any rounding. `cache`: the cost of a quantized cache."""
        if self.of_cache:
            return "cache"
        if self.kl_mean > max(self.expected, ENGINE_STEP_WRONG if self.of_engine else STEP_WRONG):
            return "wrong"
        return "differs" if self.kl_mean > self.expected else "equal"


STEP_ROUNDING = 0.001  # Divergence, in nats, that counts as rounding. It was 0.0002 for four quantizations on a CPU.
STEP_FACTOR = 2  # Largest ratio of a step's divergence to that of a perturbed forward that counts as rounding.
STEP_WRONG = 0.01  # Divergence, in nats, of a wrong step unless rounding gives more. 4-bit weights give about as much.
ENGINE_STEP_WRONG = 0.1  # The same of external engines. llama.cpp rounds activations to 8 bits: 0.0116 in Q4_0.


class TaskResult(Plain):
    task: str
    version: str
    harness: str
    metric: str
    """Metric of the harness with its filter, as `acc_norm` or `exact_match (strict-match)`."""
    few_shots: Whole
    asked: tuple[str, ...] = ()
    """All task names of --tasks; one name may stand for several tasks."""
    limit: Whole | None = None
    right: Annotated[tuple[bool, ...], Field(min_length=1)]

    @property
    def accuracy(self) -> float:
        return sum(self.right) / len(self.right)


class WindowMeans(Plain):
    """Means over one window of the text. Means and standard errors of the text are computed from its windows."""

    nats: Number
    """Mean negative log-probability of the text's own tokens, nats."""
    baseline_nats: Number
    kl: Number
    same_top: Number
    squared_change: Number


class GreedyText(Plain):
    tokens: tuple[Whole, ...]
    gaps: tuple[Number, ...] = ()
    """Difference of the log-probabilities of the two most likely tokens at each position, nats."""


class Quality(Plain):
    size: QualitySize
    path: Literal["forward", "step", "prefill"] = "forward"
    """Source of the predictions: the engine's decode `step`, its `prefill`, or the model's `forward`."""
    text: str
    text_sha256: str
    text_asked: str | None = None
    text_tokens: Whole
    window_tokens: Whole
    scored_from: Whole
    """First position in a window whose next token is scored."""
    begins_with: Whole | None
    positions: Whole
    top_k: Whole | None
    """Number of tokens kept of each distribution, null for all; divergences are then lower bounds."""
    perplexity: Number
    perplexity_error: Number | None
    baseline: str
    is_baseline: bool
    baseline_perplexity: Number
    against: Divergence
    noise: Divergence
    """Divergence of the baseline from itself in a second run."""
    windows: tuple[WindowMeans, ...]
    greedy: tuple[GreedyText, ...] = ()
    seconds: Number
    file_bytes: Whole
    extra_bytes: Whole | None

    @property
    def is_silent(self) -> bool:
        return self.against.kl_mean < SILENT_KL

    @property
    def why_failed(self) -> str | None:
        """Return why these predictions count as wrong, so that tables hide the variant's speed; None if not wrong."""
        if self.against.ln_ratio <= math.log(FAILED_RATIO):
            return None
        return (
            f"its perplexity {decimal(self.perplexity)} is over {FAILED_RATIO:g} times that of {self.baseline} "
            f"({decimal(self.baseline_perplexity)}): its output is wrong"
        )

    @property
    def is_distinguishable(self) -> bool:
        return self.against.kl_mean > self.noise.kl_mean

    @property
    def measured_on(self) -> tuple[str | int | None, ...]:
        """Text and windows. Perplexities are comparable only if these are equal."""
        text = self.text_sha256, self.text_tokens, self.positions
        return *text, self.window_tokens, self.scored_from, self.begins_with


FAILED_RATIO = 10.0
"""Ratio to the baseline's perplexity above which predictions count as wrong. The value is our choice: rounding
`qwen3-small` to 2 bits in groups of 128 gives 4.4."""
SILENT_KL = 0.01
"""Divergence, in nats per token, that is too small to rank variants (arXiv 2606.19558). The value is our choice."""


def baseline_name(model_id: str, dtype: str) -> str:
    return f"fp16 of {model_id} in {dtype}"


class QualitySpec(Plain):
    size: Literal["off", "quick", "full"] = "off"
    """`quick` scores 2,048 tokens in 64 windows spread over the text, `full` all of it."""
    text: str | None = None
    """A file, or a data set as NAME, NAME:CONFIG or NAME:CONFIG:SPLIT; the shipped text by default."""
    top_k: Annotated[int, Field(gt=0)] | None = None
    """Keep only this many of the most likely tokens: a small file, and divergences that are lower bounds."""
    baseline: Annotated[str, Field(min_length=1)] | None = None
    """Hub id or folder of the unquantized model if the checkpoint itself is quantized."""

    tasks: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Names of lm-evaluation-harness tasks."""
    task_limit: Positive | None = None
    """Number of questions of each task; all by default."""

    @property
    def is_asked(self) -> bool:
        return self.size != "off" or bool(self.tasks)

    @field_validator("size", mode="before")
    @classmethod
    def _off_is_a_word(cls, size: Any) -> Any:
        # YAML 1.1 reads a bare `off` as false.
        return "off" if size is False else size


INDISTINGUISHABLE = "indistinguishable"


def quality_line(quality: Quality) -> str:
    against = quality.against
    sentences = [f"quality: perplexity {decimal(quality.perplexity)}"]
    if quality.is_baseline:
        sentences.append(f"noise floor {significant(quality.against.kl_mean, 3)}")
    else:
        sentences += [
            f"{change_text(quality)} against {quality.baseline} ({decimal(quality.baseline_perplexity)})",
            f"KL divergence {kl_text(quality)}, median {significant(against.kl_median, 3)}, "
            f"99 % {significant(against.kl_99, 3)}",
            f"same top token {percent(against.same_top, places=1)}",
            f"the baseline's forward, run twice, {significant(quality.noise.kl_mean, 3)}",
        ]
    return ", ".join([*sentences, f"{quality.seconds:.1f} s"])


STEP_VERDICTS = {
    "equal": "rounding",
    "differs": "more than rounding",
    "wrong": "another computation",
    "cache": "the quantized KV cache",
}


def step_line(checked: StepDivergence) -> str:
    joint = {"differs": ", which is", "cache": "; rounding is"}.get(checked.verdict)
    limit = f"{joint} up to {significant(checked.expected, 2)}" if joint else ""
    return (
        f"KL step/eager: {significant(checked.kl_mean, 3)} nats a token over {checked.steps} steps "
        f"({STEP_VERDICTS[checked.verdict]}{limit})"
    )


def wrong_step_words(checked: StepDivergence) -> str:
    return (
        "the timed step predicts something else than the variant's own forward: "
        f"KL {significant(checked.kl_mean, 3)} nats a token over {checked.steps} steps, where rounding gives up to "
        f"{significant(checked.expected, 2)}; report it as a bug of the engine"
    )


def change_text(quality: Quality) -> str:
    """Return the change of perplexity from the baseline's: `+1.2 ± 0.3 %`."""
    against = quality.against
    ratio = math.exp(against.ln_ratio)
    error = "" if against.ln_ratio_error is None else f" ± {100 * ratio * against.ln_ratio_error:.2f}"
    return f"{100 * (ratio - 1):+.2f}{error} %"


def kl_text(quality: Quality) -> str:
    """Return mean and standard error of the divergence, or `indistinguishable`."""
    against = quality.against
    if not quality.is_distinguishable:
        return INDISTINGUISHABLE
    mean, error = significant(against.kl_mean, 3), against.kl_mean_error
    if error is None:
        return mean
    places = len(mean.partition(".")[2])
    return f"{mean} ± {significant(error, 1) if 'e' in mean else f'{error:.{places}f}'}"
