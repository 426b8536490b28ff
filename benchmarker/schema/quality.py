"""What quantization cost in quality, as a record holds it.

All in nats (natural logarithms) per token. Standard errors are over the windows, not over the tokens: tokens of one
window share their subject, so that treating them as independent would understate the error.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from benchmarker.core.formatting import decimal, percent, significant
from benchmarker.schema.base import Number, Plain, Positive, Whole

QualitySize = Literal["quick", "full"]
"""How much of a text is scored."""
WINDOW_TOKENS: dict[QualitySize, int] = {"quick": 289, "full": 512}
"""Tokens of a window. The first 256 are only read, and the last has no next one to predict: `quick` scores 32 of a
window, `full` 255."""


class Divergence(Plain):
    """How far one model's predictions are from the baseline's, over all scored tokens."""

    ln_ratio: Number
    """ln(perplexity / baseline's perplexity), token by token on the same text: 0 where nothing was lost."""
    ln_ratio_error: Number | None
    """Its standard error. Of the paired difference, which is many times smaller than either perplexity's own. None for
    a single window, as all standard errors here."""
    kl_mean: Number
    """Kullback-Leibler divergence: what is lost by predicting with this model where the baseline is right."""
    kl_mean_error: Number | None
    kl_median: Number
    kl_90: Number
    """90th percentile over the tokens."""
    kl_99: Number
    kl_999: Number | None = None
    """99.9th percentile. None where fewer than 5 tokens lie beyond it, and in older records, as the next two."""
    kl_max: Number
    change_low: Number | None = None
    """0.1st percentile of the change of the probability that the text's own token was given: the tokens that lost
    most."""
    change_high: Number | None = None
    """99.9th percentile: those that won most."""
    same_top: Number
    """Share of the tokens at which both models think the same next token likeliest."""
    same_top_error: Number | None
    probability_rms: Number
    """Root mean square of the change of the probability that the text's own token was given."""


class StepDivergence(Plain):
    """How far the decode step that was timed is from the same form's own forward, which takes the whole text at once.

    The step is given the text's tokens, whatever it likes best itself. Random weights do as well as others.
    """

    steps: Positive
    """Decode steps that were compared."""
    text_tokens: Positive
    """Length of each text, prompt of one token included: no longer than what was timed, so that the step is that of the
    timed shape."""
    kl_mean: Number
    """Kullback-Leibler divergence of the step from the forward, mean over the steps, in nats."""
    kl_max: Number
    same_top: Number
    """Share of the steps at which both think the same token likeliest."""
    plain_kl_mean: Number | None = None
    """The same of the libraries' own step, with nothing captured or compiled: the ordinary rounding of this form. It
    is `kl_mean` where that step is what was timed (`eager`), and None where the libraries' kernels are not there any
    more. Records from before had None for `eager` too, and are read as if they had `kl_mean`."""
    of_engine: bool = False
    """Whether step and forward are those of an engine in a process of its own: its prompts may go through other kernels
    than its steps, which round otherwise."""
    of_cache: bool = False
    """Whether the KV cache is quantized: `kl_mean` is then what that costs, and `plain_kl_mean` of a cache that is not.
    Half of each text is in the cache before the first step."""

    @property
    def expected(self) -> float:
        """Up to here a divergence is rounding."""
        return max(STEP_ROUNDING, STEP_FACTOR * (self.plain_kl_mean or 0.0))

    @property
    def verdict(self) -> Literal["equal", "differs", "wrong", "cache"]:
        """`wrong`: what was timed is another computation. `cache`: what a quantized cache costs, large or small."""
        if self.of_cache:
            return "cache"
        if self.kl_mean > (ENGINE_STEP_WRONG if self.of_engine else STEP_WRONG):
            return "wrong"
        return "differs" if self.kl_mean > self.expected else "equal"


STEP_ROUNDING = 0.001
"""Nats. Rounding gave 0.0002 for four forms of the small model on a CPU."""
STEP_FACTOR = 5
"""A step may differ by so many times as much as the libraries' own."""
STEP_WRONG = 0.01
"""Nats: about what 4 bit costs in all."""
ENGINE_STEP_WRONG = 0.1
"""Nats. llama.cpp's step gave 0.0002 in F16, 0.0017 in Q8_0, 0.0071 in Q4_K_M and 0.0116 in Q4_0 (random weights of
Qwen3-4B, H200): it rounds the activations of a quantized form to 8 bit, and its prompts do so otherwise."""


class TaskResult(Plain):
    """Answers to the questions of one task of lm-evaluation-harness."""

    task: str
    version: str
    """Of the task, as the harness states it."""
    harness: str
    """Version of the harness."""
    metric: str
    """What counts as right: `acc_norm` chooses the answer by its likelihood per byte, `acc` by its likelihood.
    With the filter that cut the answer out of a longer text, where one did: `exact_match (strict-match)`."""
    few_shots: Whole
    """Examples before each question."""
    asked: tuple[str, ...] = ()
    """All that --tasks asked for, as it was written: one name may stand for several tasks. Empty in older records."""
    limit: Whole | None = None
    """Questions of each task that were asked for; None for all."""
    right: Annotated[tuple[bool, ...], Field(min_length=1)]
    """Whether each question was answered rightly, in the order of the data set."""

    @property
    def accuracy(self) -> float:
        return sum(self.right) / len(self.right)


class WindowMeans(Plain):
    """One window of the text: what every mean and every standard error can be computed from again."""

    nats: Number
    """Mean surprise at the text's own tokens: -ln of the probability that they were given."""
    baseline_nats: Number
    kl: Number
    same_top: Number
    squared_change: Number
    """Mean square of the change of the own token's probability."""


class GreedyText(Plain):
    """What an engine makes of one prompt, by the likeliest token each time."""

    tokens: tuple[Whole, ...]
    gaps: tuple[Number, ...] = ()
    """Between the log-probabilities of the two likeliest tokens at the place of each, in nats; empty where the engine
    does not tell."""


class Quality(Plain):
    """Perplexity, and the divergence from the unquantized model."""

    size: QualitySize
    path: Literal["forward", "step", "prefill"] = "forward"
    """Whose predictions they are: of the engine's decode `step`, which is what is timed; of its `prefill`, where it
    tells no other; or, in older records, of the model's own `forward`, whatever the engine."""
    text: str
    """Name of the text: the shipped one's, the file's, or the data set's."""
    text_sha256: str
    text_asked: str | None = None
    """As --eval-text gave it: a data set may be named without its split. None for the shipped one, and in older
    records."""
    text_tokens: Whole
    window_tokens: Whole
    scored_from: Whole
    """First position in a window whose next token is scored: what stands before it is context only."""
    begins_with: Whole | None
    """Token put at the beginning of every window (BOS); None where the tokenizer puts none."""
    positions: Whole
    """Tokens scored, over all windows."""
    top_k: Whole | None
    """Tokens that each distribution was kept with; the others were lumped together, so that divergences are lower
    bounds. None where all of them were kept."""
    perplexity: Number
    perplexity_error: Number | None
    """Standard error, for the text: another text of the same kind would differ by that much."""
    baseline: str
    """The model that this one is held against."""
    is_baseline: bool
    """Whether it is that model itself. By its `forward` `against` is `noise`; by a step it is the engine's rounding."""
    baseline_perplexity: Number
    against: Divergence
    noise: Divergence
    """Of the baseline from itself, run twice: a divergence that is not larger is not the quantization's."""
    windows: tuple[WindowMeans, ...]
    greedy: tuple[GreedyText, ...] = ()
    """What follows the first 32 tokens of eight windows. Empty in older records."""
    seconds: Number
    """For all of it, loading the baseline included."""
    file_bytes: Whole
    """Size of the temporary file that the distributions were kept in."""
    extra_bytes: Whole | None
    """Most bytes of live tensors beyond the model's own while it was scored. None on CPU."""

    @property
    def is_reference(self) -> bool:
        """Whether it is the baseline's own forward, which cannot be far from itself."""
        return self.is_baseline and self.path == "forward"

    @property
    def is_silent(self) -> bool:
        """Whether the divergence is too small to say which of two forms is better."""
        return self.against.kl_mean < SILENT_KL

    @property
    def is_distinguishable(self) -> bool:
        """Whether the divergence is larger than the baseline's from itself."""
        return self.against.kl_mean > self.noise.kl_mean

    @property
    def measured_on(self) -> tuple[str | int | None, ...]:
        """The same for two models that were asked the same: only then do their perplexities compare."""
        return (
            self.text_sha256,
            self.text_tokens,
            self.positions,
            self.window_tokens,
            self.scored_from,
            self.begins_with,
        )


SILENT_KL = 0.01
"""Nats a token. Below it a divergence does not rank forms: near the baseline its rank correlation with benchmark scores
is 0.00 and -0.24 (arXiv 2606.19558, 28 forms of one model and 41 of another). Where "near" ends is our choice: above
what 8 bit forms cost, 0.0014 in llama.cpp's table for Llama-3-8B, and below its 4 bit forms' 0.031."""


def baseline_name(model_id: str, dtype: str) -> str:
    """What a record calls the unquantized model: `fp16 of Qwen/Qwen3-4B in float16`."""
    return f"fp16 of {model_id} in {dtype}"


class QualitySpec(Plain):
    """Whether and how perplexity and divergence from the unquantized model are measured."""

    size: Literal["off", "quick", "full"] = "off"
    """`quick` scores 2,048 tokens in 64 windows spread over the text, `full` all of it."""
    text: str | None = None
    """A file, or a data set as NAME, NAME:CONFIG or NAME:CONFIG:SPLIT; the text that ships with benchmarker if not
    said."""
    top_k: Annotated[int, Field(gt=0)] | None = None
    """Keep only so many of the likeliest tokens: a small file, and divergences that are lower bounds."""
    baseline: Annotated[str, Field(min_length=1)] | None = None
    """Hub id or folder of the unquantized model, where the checkpoint itself is quantized."""

    tasks: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Tasks of lm-evaluation-harness whose questions are asked, by name."""
    task_limit: Positive | None = None
    """Questions of each task; all of them if not said."""

    @property
    def is_asked(self) -> bool:
        """Whether anything is to be judged."""
        return self.size != "off" or bool(self.tasks)

    @field_validator("size", mode="before")
    @classmethod
    def _off_is_a_word(cls, size: Any) -> Any:
        # YAML 1.1 reads a bare `off` as false.
        return "off" if size is False else size


INDISTINGUISHABLE = "indistinguishable"


def quality_line(quality: Quality) -> str:
    """The whole of it in one line, for the end of a run."""
    against = quality.against
    sentences = [f"quality: perplexity {decimal(quality.perplexity)}"]
    if not quality.is_reference:
        sentences += [
            f"{change_text(quality)} against {quality.baseline} ({decimal(quality.baseline_perplexity)})",
            f"KL divergence {kl_text(quality)}, median {significant(against.kl_median, 3)}, "
            f"99 % {significant(against.kl_99, 3)}",
            f"same top token {percent(against.same_top, places=1)}",
        ]
    return ", ".join([*sentences, f"noise floor {significant(quality.noise.kl_mean, 3)}, {quality.seconds:.1f} s"])


def step_line(checked: StepDivergence) -> str:
    """How far the timed step is from the form's own forward, in one line."""
    verdicts = {
        "equal": "rounding",
        "differs": f"more than rounding, which is up to {significant(checked.expected, 2)}",
        "wrong": "another computation",
        "cache": f"the quantized KV cache; {significant(checked.plain_kl_mean or 0.0, 2)} without",
    }
    return (
        f"KL step/eager: {significant(checked.kl_mean, 3)} nats a token over {checked.steps} steps "
        f"({verdicts[checked.verdict]})"
    )


def wrong_step_words(checked: StepDivergence) -> str:
    """Why a cell whose step is wrong has no speed."""
    expected = significant(checked.expected, 2)
    return (
        "the timed step predicts something else than the form's own forward: "
        f"KL {significant(checked.kl_mean, 3)} nats a token over {checked.steps} steps, where rounding gives up to "
        f"{expected}; report it as a bug of the engine"
    )


def change_text(quality: Quality) -> str:
    """Of the perplexity, from the baseline's: `+1.2 ± 0.3 %`."""
    against = quality.against
    ratio = math.exp(against.ln_ratio)
    error = "" if against.ln_ratio_error is None else f" ± {100 * ratio * against.ln_ratio_error:.2f}"
    return f"{100 * (ratio - 1):+.2f}{error} %"


def kl_text(quality: Quality) -> str:
    """Mean and standard error; a word where the baseline differs from itself by as much."""
    against = quality.against
    if not quality.is_distinguishable:
        return INDISTINGUISHABLE
    if against.kl_mean_error is None:
        return significant(against.kl_mean, 3)
    places = len(significant(against.kl_mean, 3).partition(".")[2])
    plain = "e" not in significant(against.kl_mean, 3)
    error = f"{against.kl_mean_error:.{places}f}" if plain else significant(against.kl_mean_error, 1)
    return f"{significant(against.kl_mean, 3)} ± {error}"
