"""Tables of a variant's results: check of the timed step, quality, greedy text, and accuracy on tasks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from benchmarker.comparison.rows import grouped, listed
from benchmarker.core.formatting import MISSING, decimal, percent, range_text, significant
from benchmarker.core.tables import Column, Sheet, plain_line
from benchmarker.report.columns import number_column
from benchmarker.schema.quality import (
    ENGINE_STEP_WRONG,
    INDISTINGUISHABLE,
    SILENT_KL,
    STEP_FACTOR,
    STEP_ROUNDING,
    STEP_VERDICTS,
    STEP_WRONG,
    Quality,
    TaskResult,
    change_text,
    kl_text,
)
from benchmarker.workloads.generation.reading.generation_rows import ROUNDING_GAP, GenerationRow
from benchmarker.workloads.generation.reading.generation_tables import Columns

_three_digits = partial(significant, digits=3)
_tenths = partial(percent, places=1)
VARIANT = Column[GenerationRow]("variant", lambda row: row.variant, "left")


def judgement_sheets(rows: Sequence[GenerationRow]) -> list[Sheet]:
    """Return the tables for the rows of one cell, without tables that would be empty."""
    answers = task_answers(rows)
    sheets = []
    if any(row.step_divergence for row in rows):
        sheets.append(Sheet("Timed step", STEP_COLUMNS, rows, (step_caption(rows),)))
    if any(row.quality for row in rows):
        sheets.append(Sheet("Quality", _quality_columns(rows), rows, (_quality_caption(rows),)))
    if any(row.first_difference for row in rows):
        sheets.append(Sheet("Greedy text", TEXT_COLUMNS, rows, (_text_caption(rows),)))
    if answers:
        sheets.append(Sheet("Tasks", TASK_COLUMNS, answers, (_task_caption(answers),)))
    return sheets


def _of(
    field: str,
    heading: str,
    text: Callable[[Any], str],
    align: str = "right",
    *,
    sort: Callable[[GenerationRow], float | None] | None = None,
) -> Column[GenerationRow]:
    def cell_text(row: GenerationRow) -> str:
        value = getattr(row, field)
        return MISSING if value is None else text(value)

    return Column(heading, cell_text, align, sort=sort)


# Timed step

STEP_COLUMNS = [
    VARIANT,
    _of("step_divergence", "KL step/eager", lambda checked: _three_digits(checked.kl_mean)),
    _of("step_divergence", "perturbed", lambda checked: _three_digits(checked.rounding_kl_mean)),
    _of("step_divergence", "max", lambda checked: _three_digits(checked.kl_max)),
    _of("step_divergence", "same top", lambda checked: _tenths(checked.same_top)),
    _of("step_divergence", "steps", lambda checked: str(checked.steps)),
    _of("step_divergence", "it is", lambda checked: STEP_VERDICTS[checked.verdict], "left"),
]


def step_caption(rows: Sequence[GenerationRow]) -> str:
    sentences = [
        "KL step/eager is the divergence of the timed decode step's predictions from those of the same variant's own "
        "forward, in nats a token, on one text; perturbed is that of this forward with every module's output moved by "
        f"up to one unit in the last place. Rounding is up to {STEP_ROUNDING} or {STEP_FACTOR} times the perturbed "
        f"divergence; a variant above both this and {STEP_WRONG} has no speed."
    ]
    if any(row.step_divergence and row.step_divergence.of_engine for row in rows):
        sentences.append(
            "The step of an engine in its own process is compared with its own prefill, whose kernels may round "
            f"differently: its limit is {ENGINE_STEP_WRONG}."
        )
    if unchecked := [row.variant for row in rows if not row.step_divergence and row.status == "ok"]:
        sentences.append(f"Not checked: {listed(unchecked)}.")
    return " ".join(sentences)


# Quality

DIFFERENCES: dict[str, tuple[str, Callable[[float], str]]] = {
    "median": ("kl_median", _three_digits),
    "90 %": ("kl_90", _three_digits),
    "99 %": ("kl_99", _three_digits),
    "99.9 %": ("kl_999", _three_digits),
    "max": ("kl_max", _three_digits),
    "same top": ("same_top", _tenths),
    "RMS Δp": ("probability_rms", _tenths),
    "Δp 0.1 %": ("change_low", lambda value: f"{100 * value:+.1f} %"),
    "Δp 99.9 %": ("change_high", lambda value: f"{100 * value:+.1f} %"),
}
"""(field, format) by heading, for columns of differences between a variant's predictions and the baseline's."""


def _quality_columns(rows: Sequence[GenerationRow]) -> Columns:
    def change(row: GenerationRow) -> float | None:
        if row.quality is None:
            return None
        return 0.0 if row.quality.is_baseline else row.quality.against.ln_ratio

    return [
        VARIANT,
        _of(
            "quality",
            "perplexity",
            lambda quality: decimal(quality.perplexity),
            sort=lambda row: row.quality.perplexity if row.quality else None,
        ),
        _of("quality", "change", lambda each: "baseline" if each.is_baseline else change_text(each), sort=change),
        _of(
            "quality",
            "KL divergence",
            lambda quality: MISSING if quality.is_baseline else kl_text(quality),
            sort=_difference("kl_mean"),
        ),
        *(
            number_column(heading, _difference(field), text, is_more_better=field == "same_top")
            for heading, (field, text) in DIFFERENCES.items()
            if _has(rows, field)
        ),
    ]


def _difference(field: str) -> Callable[[GenerationRow], float | None]:
    return lambda row: getattr(row.quality.against, field) if row.quality and not row.quality.is_baseline else None


def _has(rows: Sequence[GenerationRow], field: str) -> bool:
    return any(row.quality and getattr(row.quality.against, field) is not None for row in rows)


def _quality_caption(rows: Sequence[GenerationRow]) -> str:
    judged = [row for row in rows if row.quality]
    qualities = [(row.variant, row.quality) for row in rows if row.quality]
    sentences = [
        f"Quality {_measured_on(qualities)}; ± is a standard error over the windows: of another text, not of another "
        "quantizing of the same weights.",
        *_paths(qualities),
        *_incomparable(judged),
        "KL divergence is in nats a token: mean, median, 90th and 99th percentile, maximum. Same top is how often both "
        "think the same token likeliest, RMS Δp how much the probability of the text's own token moves.",
    ]
    if _has(judged, "change_low"):
        sentences.append(
            "Δp 0.1 % is the change that one token in a thousand falls below, Δp 99.9 % that one rises above."
        )
    sentences.append(_noise(qualities))
    variants = [(name, quality) for name, quality in qualities if not quality.is_baseline]
    silent = list(dict.fromkeys(name for name, quality in variants if quality.is_silent))
    if len(silent) > 1:
        sentences.append(
            f"Silent zone: below {SILENT_KL} nats a divergence does not say which form is better, only that little "
            f"moved: {listed(silent)} are not ranked by it; use tasks."
        )
    bounds = grouped((quality.top_k, name) for name, quality in variants if quality.top_k is not None)
    sentences += [
        f"Divergences of {listed(bounds[count])} are lower bounds: only the {count} likeliest tokens were kept."
        for count in sorted(bounds)
    ]
    return " ".join(sentences)


def _measured_on(qualities: Sequence[tuple[str, Quality]]) -> str:
    groups = grouped(((quality.measured_on, _method(quality)), name) for name, quality in qualities)
    if len(groups) == 1:
        return _method(qualities[0][1])
    return "; ".join(f"of {listed(variants)} {method}" for (_, method), variants in groups.items())


def _method(quality: Quality) -> str:
    return (
        f"on {quality.positions:,} tokens of {plain_line(quality.text)} (sha256 {quality.text_sha256[:12]}; windows of "
        f"{quality.window_tokens}, the first {quality.scored_from} only read), each variant against "
        f"{plain_line(quality.baseline)}"
    )


def _paths(qualities: Sequence[tuple[str, Quality]]) -> list[str]:
    """Return notes on the computation whose quality was measured: decode step, prefill or forward pass."""
    paths = grouped((quality.path, name) for name, quality in qualities)
    sentences = []
    if steps := paths.get("step"):
        which = "Each was" if len(steps) == len(qualities) else f"{listed(steps)} {'were' if steps[1:] else 'was'}"
        sentences.append(f"{which} scored by the decode step that is timed, one token at a time.")
    if prefills := paths.get("prefill"):
        sentences.append(
            f"The numbers of {listed(prefills)} are those of the prefill, because the engine does not score its decode "
            "step: the first table and budgets leave them out."
        )
    if "forward" in paths and len(paths) > 1:
        sentences.append(f"Those of {listed(paths['forward'])} are of the model's forward pass, in any engine.")
    return sentences


def _incomparable(judged: Sequence[GenerationRow]) -> list[str]:
    texts = [row.variant for row in judged if row.perplexity is None]
    limited = [row.variant for row in judged if row.perplexity is not None and row.kl_divergence is None]
    reasons = {
        "Perplexities and divergences on different texts, or parts of one,": texts,
        "Divergences over different numbers of tokens": limited,
    }
    return [
        f"{subject} do not compare: the first table and budgets leave out those of {listed(variants)}."
        for subject, variants in reasons.items()
        if variants
    ]


def _noise(qualities: Sequence[tuple[str, Quality]]) -> str:
    floors = range_text([_three_digits(floor) for floor in sorted(quality.noise.kl_mean for _, quality in qualities)])
    by_step = any(quality.is_baseline and quality.path == "step" for _, quality in qualities)
    source = "by its own decode step" if by_step else "run twice"
    return (
        f"Noise floor: {floors}, the baseline's divergence from itself, {source}; a divergence that is not "
        f"above it is {INDISTINGUISHABLE}."
    )


# Greedy text


TEXT_COLUMNS = [
    VARIANT,
    _of("first_difference", "same text", lambda difference: f"{difference.same} of {difference.prompts}"),
    _of("first_difference", "first difference", lambda each: f"token {each.token}" if each.token else MISSING),
    _of("first_difference", "gap", lambda difference: significant(difference.gap, 2)),
    _of("first_difference", "it is", lambda difference: difference.verdict, "left"),
]


def _text_caption(rows: Sequence[GenerationRow]) -> str:
    prompts = next(row.first_difference.prompts for row in rows if row.first_difference)
    baseline = next((row.variant for row in rows if row.is_baseline), "the baseline")
    return (
        f"Greedy text after {prompts} fixed prompts, against {baseline}'s: the earliest token that differs, and "
        "the largest gap between the two likeliest tokens where a text first differs, in nats. Up to "
        f"{ROUNDING_GAP} it is rounding: another order of additions may swap the two. Above, the form or the engine "
        "computes something else; the KL divergence says how much."
    )


def text_line(rows: Sequence[GenerationRow], baseline: str | None) -> list[str]:
    """Return a line on the token from which each variant's text in the timed runs differs from the baseline's; [] for
    random weights."""
    places = [
        f"{plain_line(row.variant)} the same for all {len(row.first_tokens)} tokens"
        if row.tokens_in_common == len(row.first_tokens)
        else f"{plain_line(row.variant)} differs from token {row.tokens_in_common + 1} on"
        for row in rows
        if row.tokens_in_common is not None and not row.is_baseline and not row.has_random_weights
    ]
    if not places or baseline is None:
        return []
    return [f"Timed text, relative to {plain_line(baseline)}'s (information, not a score): {', '.join(places)}."]


# Tasks


class Paired(NamedTuple):
    """Difference between a variant's answers and the baseline's to the same questions (paired, because correlated)."""

    change: float  # Accuracy minus the baseline's, between -1 and 1.
    error: float  # Standard error of the change.
    flips: float  # Share of questions that either only the variant or only the baseline answered correctly.
    p: float  # Two-sided p value of McNemar's exact test for the two directions of flips.


class Answers(NamedTuple):
    """Answers of one variant in one task. `paired` is None for the baseline, or if its answers are not comparable."""

    variant: str
    result: TaskResult
    paired: Paired | None


def task_answers(rows: Sequence[GenerationRow]) -> list[Answers]:
    by_task = {(row.sweep, result.task): result for row in rows if row.is_baseline for result in row.tasks}

    def difference(row: GenerationRow, result: TaskResult) -> Paired | None:
        baseline = None if row.is_baseline else by_task.get((row.sweep, result.task))
        return paired(result, baseline) if baseline and _procedure(baseline) == _procedure(result) else None

    answers = [Answers(row.variant, result, difference(row, result)) for row in rows for result in row.tasks]
    return sorted(answers, key=lambda answer: answer.result.task)


def paired(variant: TaskResult, baseline: TaskResult) -> Paired:
    changes = [int(after) - int(before) for after, before in zip(variant.right, baseline.right, strict=True)]
    gained, lost = changes.count(1), changes.count(-1)
    flips = gained + lost
    tail = sum(math.comb(flips, fewer) for fewer in range(min(gained, lost) + 1))
    return Paired(
        change=statistics.fmean(changes),
        error=(statistics.stdev(changes) if len(changes) > 1 else 0.0) / math.sqrt(len(changes)),
        flips=flips / len(changes),
        p=min(1.0, 2 * tail / (1 << flips)),
    )


def _procedure(result: TaskResult) -> tuple[object, ...]:
    return result.version, result.harness, result.metric, result.few_shots, len(result.right)


def _paired(heading: str, field: str, text: Callable[[Paired], str]) -> Column[Answers]:
    return Column(
        heading,
        lambda row: text(row.paired) if row.paired else MISSING,
        sort=lambda row: getattr(row.paired, field) if row.paired else None,
    )


TASK_COLUMNS = [
    Column[Answers]("task", lambda row: row.result.task, "left"),
    Column[Answers]("variant", lambda row: row.variant, "left"),
    Column[Answers]("questions", lambda row: str(len(row.result.right)), sort=lambda row: len(row.result.right)),
    Column[Answers](
        "accuracy", lambda row: _tenths(row.result.accuracy), sort=lambda row: row.result.accuracy, is_more_better=True
    ),
    _paired("change", "change", lambda pair: f"{100 * pair.change:+.1f} ± {100 * pair.error:.1f} pp"),
    _paired("flips", "flips", lambda pair: _tenths(pair.flips)),
    _paired("p", "p", lambda pair: f"{pair.p:.3f}"),
]


def _task_caption(answers: Sequence[Answers]) -> str:
    metrics = " or ".join(sorted({plain_line(row.result.metric) for row in answers}))
    return (
        f"Tasks by lm-evaluation-harness {plain_line(answers[0].result.harness)}, {metrics}. Change is relative to the "
        "baseline on the same questions, ± its standard error; flips are questions that only one of the two answered "
        "rightly; p is McNemar's exact test, not corrected for the number of rows."
    )
