"""Table of quality, one row per variant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarker.comparison.rows import listed
from benchmarker.core.formatting import MISSING, decimal, percent, significant
from benchmarker.core.tables import Column, plain_line
from benchmarker.schema.quality import INDISTINGUISHABLE, SILENT_KL, Quality, change_text, kl_text
from benchmarker.workloads.generation.reading.generation_rows import ROUNDING_GAP, FirstDifference, GenerationRow

if TYPE_CHECKING:
    from benchmarker.workloads.generation.reading.generation_rows import ROUNDING_GAP, FirstDifference, GenerationRow


DIVERGENCES = {"median": "kl_median", "90 %": "kl_90", "99 %": "kl_99", "99.9 %": "kl_999", "max": "kl_max"}
"""Fields of a divergence by heading."""


TAILS = {"Δp 0.1 %": "change_low", "Δp 99.9 %": "change_high"}
"""Fields of the tails of a divergence by heading."""


def quality_columns(rows: Sequence[GenerationRow]) -> list[Column[GenerationRow]]:
    """Return the columns of the table of quality; none without quality."""
    if not any(row.quality for row in rows):
        return []
    return [
        Column[GenerationRow]("variant", lambda row: row.variant, "left"),
        _column("perplexity", lambda quality: quality.perplexity, lambda quality: decimal(quality.perplexity)),
        _column("change", _change, lambda quality: "baseline" if quality.is_reference else change_text(quality)),
        _beside("KL divergence", lambda quality: quality.against.kl_mean, kl_text),
        *(_divergence(heading, field) for heading, field in DIVERGENCES.items() if _has(rows, field)),
        _share("same top", lambda quality: quality.against.same_top, is_more_better=True),
        _share("RMS Δp", lambda quality: quality.against.probability_rms),
        *(_tail(heading, field) for heading, field in TAILS.items() if _has(rows, field)),
    ]


def _has(rows: Sequence[GenerationRow], field: str) -> bool:
    return any(row.quality and getattr(row.quality.against, field) is not None for row in rows)


def _column(
    heading: str,
    value_of: Callable[[Quality], float | None],
    text: Callable[[Quality], str],
    *,
    is_more_better: bool = False,
) -> Column[GenerationRow]:
    return Column(
        heading,
        lambda row: text(row.quality) if row.quality else MISSING,
        sort=lambda row: value_of(row.quality) if row.quality else None,
        is_more_better=is_more_better,
    )


def _beside(
    heading: str,
    value_of: Callable[[Quality], float | None],
    text: Callable[[Quality], str],
    *,
    is_more_better: bool = False,
) -> Column[GenerationRow]:
    column = _column(
        heading,
        value_of,
        lambda quality: MISSING if quality.is_reference else text(quality),
        is_more_better=is_more_better,
    )
    return replace(
        column, sort=lambda row: value_of(row.quality) if row.quality and not row.quality.is_reference else None
    )


def _divergence(heading: str, field: str) -> Column[GenerationRow]:
    return _beside(heading, _field(field), lambda quality: _shown(quality, field, lambda value: significant(value, 3)))


def _tail(heading: str, field: str) -> Column[GenerationRow]:
    return _beside(
        heading, _field(field), lambda quality: _shown(quality, field, lambda value: f"{100 * value:+.1f} %")
    )


def _field(field: str) -> Callable[[Quality], float | None]:
    return lambda quality: getattr(quality.against, field)


def _shown(quality: Quality, field: str, words: Callable[[float], str]) -> str:
    value = getattr(quality.against, field)
    return MISSING if value is None else words(value)


def _share(
    heading: str, value_of: Callable[[Quality], float], *, is_more_better: bool = False
) -> Column[GenerationRow]:
    return _beside(
        heading, value_of, lambda quality: percent(value_of(quality), places=1), is_more_better=is_more_better
    )


def _change(quality: Quality) -> float:
    return 0.0 if quality.is_reference else quality.against.ln_ratio


def quality_caption(rows: Sequence[GenerationRow]) -> str:
    """Return how to read the table and its text; empty without quality."""
    judged = [row for row in rows if row.quality]
    if not judged:
        return ""
    sentences = [
        f"Quality {_measured_on(judged)}; ± is a standard error over the windows: of another text, not of another "
        "quantizing of the same weights.",
        *_paths(judged),
        *_apart(judged),
        "KL divergence is in nats a token: mean, median, 90th and 99th percentile, maximum. Same top is how often both "
        "think the same token likeliest, RMS Δp how much the probability of the text's own token moves.",
        *_tails(judged),
        _noise([row.quality.noise.kl_mean for row in judged if row.quality]),
        *silent_words(judged),
        *_top_k(judged),
    ]
    return " ".join(sentences)


def _paths(judged: Sequence[GenerationRow]) -> list[str]:
    """Return whether step, prefill or forward pass was scored; empty for older records."""
    paths: dict[str, list[str]] = {}
    for row in judged:
        if row.quality:
            paths.setdefault(row.quality.path, []).append(row.variant)
    sentences = []
    if steps := paths.get("step"):
        which = "Each" if len(steps) == len(judged) else listed(steps)
        sentences.append(f"{which} was scored by the decode step that is timed, one token at a time.")
    if prefills := paths.get("prefill"):
        sentences.append(
            f"Of {listed(prefills)} the numbers are of its prefill, which is all that the engine tells, and not of the "
            "step that is timed: they stay out of the first table and of budgets."
        )
    if "forward" in paths and len(paths) > 1:
        sentences.append(f"Of {listed(paths['forward'])} they are of the model's own forward, whatever the engine.")
    return sentences


def _tails(judged: Sequence[GenerationRow]) -> list[str]:
    if not _has(judged, "change_low"):
        return []
    return ["Δp 0.1 % is the change that one token in a thousand falls below, Δp 99.9 % that one rises above."]


def silent_words(judged: Sequence[GenerationRow]) -> list[str]:
    """Return the variants whose divergences are too small to rank them; empty for one variant."""
    silent = [row.variant for row in judged if row.quality and not row.quality.is_reference and row.quality.is_silent]
    silent = list(dict.fromkeys(silent))
    if len(silent) < 2:
        return []
    return [
        f"Silent zone: below {SILENT_KL} nats a divergence does not say which form is better, only that little moved: "
        f"{listed(silent)} are not ranked by it; use tasks."
    ]


def text_line(rows: Sequence[GenerationRow], baseline: str | None) -> list[str]:
    """Return the token at which each variant's greedy text leaves the baseline's; none for random weights."""
    compared = [
        row for row in rows if row.tokens_in_common is not None and not row.is_baseline and not row.dummy_weights
    ]
    if not compared or baseline is None:
        return []
    places = ", ".join(f"{plain_line(row.variant)} {_leaves(row)}" for row in compared)
    return [f"Greedy text, against {plain_line(baseline)}'s (information, not a score): {places}."]


def _leaves(row: GenerationRow) -> str:
    if row.tokens_in_common == row.tokens_compared:
        return f"the same for all {row.tokens_compared} tokens"
    return f"differs from token {(row.tokens_in_common or 0) + 1} on"


def _measured_on(judged: Sequence[GenerationRow]) -> str:
    groups: dict[tuple[object, str], list[str]] = {}
    for row in judged:
        if row.quality:
            groups.setdefault((row.quality.measured_on, _method(row.quality)), []).append(row.variant)
    if len(groups) == 1:
        return _method(next(row.quality for row in judged if row.quality))
    return "; ".join(f"of {listed(variants)} {method}" for (_, method), variants in groups.items())


def _method(quality: Quality) -> str:
    return (
        f"on {quality.positions:,} tokens of {plain_line(quality.text)} (sha256 {quality.text_sha256[:12]}; windows of "
        f"{quality.window_tokens}, the first {quality.scored_from} only read), each variant against "
        f"{plain_line(quality.baseline)}"
    )


def _apart(judged: Sequence[GenerationRow]) -> list[str]:
    texts = [row.variant for row in judged if row.perplexity is None]
    limited = [row.variant for row in judged if row.perplexity is not None and row.kl_divergence is None]
    sentences = []
    if texts:
        sentences.append(
            "Perplexities and divergences on different texts, or parts of one, do not compare: the first table and "
            f"budgets leave out those of {listed(texts)}."
        )
    if limited:
        sentences.append(
            "Divergences over different numbers of tokens do not compare: the first table and budgets leave out those "
            f"of {listed(limited)}."
        )
    return sentences


def _noise(floors: Sequence[float]) -> str:
    low, high = significant(min(floors), 3), significant(max(floors), 3)
    if low == high:
        return (
            f"The baseline's divergence from itself, run twice, is {low}; what is not above it is {INDISTINGUISHABLE}."
        )
    return (
        f"The baseline's divergence from itself, run twice beside each variant, is {low} to {high}; a variant that is "
        f"not above its own is {INDISTINGUISHABLE}."
    )


def _top_k(judged: Sequence[GenerationRow]) -> list[str]:
    bounds: dict[int, list[str]] = {}
    for row in judged:
        if row.quality and not row.quality.is_reference and row.quality.top_k is not None:
            bounds.setdefault(row.quality.top_k, []).append(row.variant)
    return [
        f"Divergences of {listed(variants)} are lower bounds: only the {count} likeliest tokens were kept."
        for count, variants in sorted(bounds.items())
    ]


def difference_columns(rows: Sequence[GenerationRow]) -> list[Column[GenerationRow]]:
    """Return the columns of the table of greedy text; none without texts."""
    if not any(row.first_difference for row in rows):
        return []
    return [
        Column["GenerationRow"]("variant", lambda row: row.variant, "left"),
        Column["GenerationRow"]("same text", _of(lambda found: f"{found.same} of {found.prompts}")),
        Column["GenerationRow"](
            "first difference", _of(lambda found: f"token {found.token}" if found.token else MISSING)
        ),
        Column["GenerationRow"]("gap", _of(lambda found: MISSING if found.gap is None else significant(found.gap, 2))),
        Column["GenerationRow"]("it is", _of(lambda found: found.verdict), "left"),
        Column["GenerationRow"]("KL divergence", _divergence_of_row),
    ]


def difference_caption(rows: Sequence[GenerationRow]) -> str:
    """Return how to read the table; empty without texts."""
    found = next((row.first_difference for row in rows if row.first_difference), None)
    if found is None:
        return ""
    baseline = next((row.variant for row in rows if row.is_baseline), "the baseline")
    return (
        f"Greedy text after {found.prompts} fixed prompts, against {baseline}'s: the earliest token that differs, and "
        "the largest gap between the two likeliest tokens where a text first differs, in nats. Up to "
        f"{ROUNDING_GAP} it is rounding: another order of additions may swap the two. Above, the form or the engine "
        "computes something else; the KL divergence says how much."
    )


def _divergence_of_row(row: GenerationRow) -> str:
    return significant(row.quality.against.kl_mean, 3) if row.quality and row.first_difference else MISSING


def _of(text: Callable[[FirstDifference], str]) -> Callable[[GenerationRow], str]:
    return lambda row: text(row.first_difference) if row.first_difference else MISSING
