"""The device's limits: measured times and floors, predicted and measured decode rates, and break-even of loading."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

from benchmarker.comparison.rows import cell_words, headline, is_wide
from benchmarker.core.formatting import MISSING, decimal, percent, rate, seconds
from benchmarker.core.tables import Column, Sheet, code, plain_line
from benchmarker.explain.explain import Explanation
from benchmarker.report.columns import LIMITS_TITLE, names, number_column, number_columns
from benchmarker.report.explanations import ceiling_words
from benchmarker.workloads.generation.architecture import MBU_LIMIT
from benchmarker.workloads.generation.reading.generation_rows import GenerationRow
from benchmarker.workloads.generation.reading.generation_tables import Columns, cell_columns
from benchmarker.workloads.generation.record import GenerationRecord

if TYPE_CHECKING:
    from benchmarker.report.compare import Comparison

_share = partial(percent, places=0)
QUANTIZED_AHEAD = ("gptq",)  # Quantizations that are computed before loading, not while loading.
COMPILED = ("compile", "native")  # Engines whose set-up is compilation; a cache on disk shortens it.


FREE_AXES = ("batch_size", "depth", "prompts")
"""Axes on which the floor of a decode step depends; it hardly depends on prompt and new tokens."""


def limit_sheets(rows: Sequence[GenerationRow], *, whole: bool = False) -> list[Sheet]:
    """Return the table of measured times and floors; no table if no row has a floor.

    If `whole`, the table has the cell of the first table at every batch size and depth.
    """
    if whole and (cell := headline(rows)):
        rows = [row for row in rows if row.cell and row.cell.without(*FREE_AXES) == cell.without(*FREE_AXES)]
    members = [row for row in rows if row.floor_s is not None]
    return [Sheet(LIMITS_TITLE, _limit_columns(members), members, (_limit_caption(rows),))] if members else []


def _limit_columns(rows: Sequence[GenerationRow]) -> Columns:
    columns: Columns = [
        *(cell_columns(rows) if len({row.cell for row in rows}) > 1 else []),
        *names(rows),
        _column("TPOT ms", lambda row: row.tpot.value * 1e3 if row.tpot else None, decimal),
        _column("decode tok/s", lambda row: row.decode_tokens_per_s, decimal, is_more_better=True),
        _column("floor ms", lambda row: row.floor_s and row.floor_s * 1e3, decimal, is_timed=False),
        _column("MBU", lambda row: row.mbu, _share, is_more_better=True),
        _column("best", lambda row: row.best_ratio, lambda ratio: f"{ratio:.2f}x", is_timed=False, is_more_better=True),
        _column("reached", lambda row: row.share_of_best_ratio, _share, is_more_better=True),
    ]
    columns += number_columns(rows, "kernels/token", lambda row: row.kernels_per_token, lambda count: f"{count:.0f}")
    if any(row.same_tokens is not None for row in rows):
        columns.append(Column("as eager", _as_eager, sort=lambda row: row.same_tokens, is_more_better=True))
    return columns


def _as_eager(row: GenerationRow) -> str:
    return MISSING if row.same_tokens is None else f"{row.same_tokens} of {len(row.first_tokens)}"


def _column(
    heading: str,
    value_of: Callable[[GenerationRow], float | None],
    text: Callable[[float], str],
    *,
    is_timed: bool = True,
    is_more_better: bool = False,
) -> Column[GenerationRow]:
    def number(row: GenerationRow) -> float | None:
        return None if is_timed and row.is_withheld else value_of(row)

    return number_column(heading, number, text, is_more_better=is_more_better)


def _limit_caption(rows: Sequence[GenerationRow]) -> str:
    sentences = [
        "Decode tok/s: without the time to the first token. Floor: the least time that a token can take, from the "
        "bytes that it must read and the memory bandwidth measured in the same process (or its arithmetic, where that "
        "takes longer); MBU is the share of that bandwidth that was used."
    ]
    if any(row.best_ratio is not None for row in rows):
        sentences.append(
            "Best is the ratio of the floors at one bandwidth, and so the largest speed-up that the variant can have; "
            "reached is the share of it that it has against the baseline's quantization in the same engine."
        )
    if any(row.same_tokens is not None for row in rows):
        sentences.append(f"As eager: how many of the first greedy tokens are those of {code('generate')}.")
    return " ".join(sentences)


def impossible(rows: Sequence[GenerationRow]) -> list[str]:
    """Return a line for each row whose MBU is impossible, above 1.02."""
    cached = ", because all that a token reads stays in the last cache: its memory is no limit for it."
    error = " is impossible: an error of ours, in the bytes or in the bandwidth, and no speed. Please report it."
    return [
        f"{plain_line(row.variant)} at {cell_words(row.cell)}: MBU {_share(row.mbu)}"
        + (cached if row.fits_cache else error)
        for row in rows
        if row.mbu is not None and row.mbu > MBU_LIMIT
    ]


def ceilings(comparison: Comparison) -> list[str]:
    """Return sentences on each `cuda_graph` variant's decode rate: predicted from the eager engine, and measured."""
    rows = cast("Sequence[GenerationRow]", comparison.rows)
    members = cast("Mapping[str, Sequence[GenerationRecord]]", comparison.members)

    def quantized(variant: str) -> tuple[object, ...]:
        record = members[variant][0]
        return record.variant.quant, tuple(sorted(record.variant.options.items())), record.model.dtype

    def in_a_graph(explanation: Explanation) -> GenerationRow | None:
        cell = explanation.cell
        graphs = (row for row in rows if row.engine == "cuda_graph" and row.cell == cell and not row.is_withheld)
        return next((row for row in graphs if quantized(row.variant) == quantized(explanation.variant)), None)

    explained = [] if comparison.differences else comparison.explained
    return [
        f"{plain_line(explanation.variant)} was to reach {ceiling_words(explanation.ceiling, explanation.unit)} in a "
        f"graph; {plain_line(graph.variant)} decodes {rate(graph.decode_tokens_per_s)}"
        for explanation in explained
        if isinstance(explanation, Explanation)
        if explanation.ceiling and (graph := in_a_graph(explanation)) and graph.decode_tokens_per_s
    ]


State = Literal["cold", "warm"]
"""State of the compiler's cache."""


def break_evens(comparison: Comparison) -> list[str]:
    """Return a sentence for each variant: after how many tokens its faster decoding has paid for loading and set-up."""
    cells = [explanation.cell for explanation in comparison.explained if isinstance(explanation, Explanation)]
    if comparison.baseline is None or not cells or comparison.differences:
        return []
    members = cast("Mapping[str, Sequence[GenerationRecord]]", comparison.members)
    measured = cast("Sequence[GenerationRow]", comparison.rows)
    rows = {row.variant: row for row in measured if row.cell == cells[0] and not is_wide(row.rate)}
    baseline = rows.pop(comparison.baseline, None)
    if baseline is None:
        return []
    before = cost_of(members[baseline.variant])
    sentences = (break_even(baseline, row, costs=(before, cost_of(members[name]))) for name, row in rows.items())
    return list(filter(None, sentences))


def break_even(
    baseline: GenerationRow, row: GenerationRow, *, costs: tuple[Mapping[State, float], Mapping[State, float]]
) -> str | None:
    """Return the sentence on a row's break-even; None if a rate or cost is unknown. `costs`: (baseline's, row's)."""
    if baseline.rate is None or row.rate is None:
        return None
    saved_s = 1 / baseline.rate.value - 1 / row.rate.value
    verdict = row.call.verdict if row.call else None
    variant, base = plain_line(row.variant), plain_line(baseline.variant)
    before, after = costs
    states = [state for state in after if state in before]
    if not states and saved_s > 0:
        return None
    if verdict == "inconclusive":
        return f"{variant} is not separated from {base} in whole calls: whether it pays for its loading is not decided"
    if verdict == "same" or saved_s <= 0:
        speed = "as fast as" if verdict == "same" else "not faster than"
        return f"{variant} is {speed} {base}, and never pays for its loading"
    tokens = {state: max(0, math.ceil((after[state] - before[state]) / saved_s)) for state in states}
    times = [
        f"{state} {f'{count:,} tokens' if count else 'at once'} ({seconds(after[state])} before the first token)"
        for state, count in tokens.items()
    ]
    return f"{variant} has paid for itself against {base} after: {'; '.join(times)}"


def cost_of(records: Sequence[GenerationRecord]) -> dict[State, float]:
    """Return the seconds that a variant needs before its first token, by state of the cache; unknown states are left
    out."""
    loads = [record.load for record in records if record.load]
    if not loads:
        return {}
    load_s = statistics.median(load.load_s for load in loads)
    quantized = [load.quantize_s for load in loads if load.quantize_s is not None]
    quantize_s = statistics.median(quantized) if quantized else 0.0
    warm, cold = _setup(records, "warm"), _setup(records, "cold")
    if any(record.model.load_format == "dummy" and record.variant.quant in QUANTIZED_AHEAD for record in records):
        cold = None
    costs: dict[State, float] = {"warm": load_s + warm} if warm is not None else {}
    return costs if cold is None else {**costs, "cold": load_s + cold + quantize_s}


def _setup(records: Sequence[GenerationRecord], state: State) -> float | None:
    """Return the median seconds of set-ups with this state of the compiler cache; None if none is known."""
    engines = [record.engine for record in records if record.engine]
    times = [
        engine.setup_s
        for engine in engines
        if engine.setup_s is not None
        and (engine.setup_cache == state or (not engine.setup_cache and engine.name not in COMPILED))
    ]
    if times:
        return statistics.median(times)
    return 0.0 if engines and all(engine.setup_s is None for engine in engines) else None
