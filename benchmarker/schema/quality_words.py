"""What quantization cost in quality, in words: for the end of a run, and for tables."""

from __future__ import annotations

import math

from benchmarker.core.formatting import decimal, percent, significant
from benchmarker.schema.quality import Quality, StepDivergence

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
