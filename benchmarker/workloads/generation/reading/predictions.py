"""Predicted and reached decode rates, and the break-even of loading."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from benchmarker.core.formatting import seconds
from benchmarker.core.tables import plain_line
from benchmarker.explain.values import Explanation, rate
from benchmarker.report.explanations import ceiling_words
from benchmarker.workloads.generation.reading.generation_rows import GenerationRow
from benchmarker.workloads.generation.reading.generation_rows import GenerationRow as Row
from benchmarker.workloads.generation.record import GenerationRecord

if TYPE_CHECKING:
    from benchmarker.report.compare import Comparison


def ceilings(comparison: Comparison) -> list[str]:
    """Return a sentence for each variant on the rate that `cuda_graph` was predicted to reach and reached."""
    if comparison.differences:
        return []
    explained = [explanation for explanation in comparison.explained if isinstance(explanation, Explanation)]
    pairs = [(explanation, explanation.ceiling, _in_a_graph(explanation, comparison)) for explanation in explained]
    return [
        f"{plain_line(explanation.variant)} was to reach {ceiling_words(ceiling, explanation.unit)} in a graph; "
        f"{plain_line(graph.variant)} decodes {rate(graph.decode_tokens_per_s)}"
        for explanation, ceiling, graph in pairs
        if ceiling and graph and graph.decode_tokens_per_s
    ]


def _in_a_graph(explanation: Explanation, comparison: Comparison) -> GenerationRow | None:
    form = _form(comparison, explanation.variant)
    rows = (row for row in _rows(comparison) if row.engine == "cuda_graph" and row.cell == explanation.cell)
    return next((row for row in rows if _form(comparison, row.variant) == form), None)


def _form(comparison: Comparison, variant: str) -> tuple[object, ...]:
    record = _members(comparison)[variant][0]
    return record.variant.quant, tuple(sorted(record.variant.options.items())), record.model.dtype


def break_evens(comparison: Comparison) -> list[str]:
    """Return a sentence for each variant on its break-even in the profiled cell."""
    baseline = comparison.baseline
    cells = [explanation.cell for explanation in comparison.explained if isinstance(explanation, Explanation)]
    if baseline is None or not cells or comparison.differences:
        return []
    records = _members(comparison)
    rows = {row.variant: row for row in _rows(comparison) if row.cell == cells[0]}
    base = rows.get(baseline)
    if base is None:
        return []
    results = [
        break_even(base, row, costs=(cost_of(records[baseline]), cost_of(records[name])))
        for name, row in rows.items()
        if name != baseline
    ]
    return [result.sentence(baseline) for result in results if result]


def _rows(comparison: Comparison) -> Sequence[GenerationRow]:
    return cast("Sequence[GenerationRow]", comparison.rows)


def _members(comparison: Comparison) -> Mapping[str, Sequence[GenerationRecord]]:
    return cast("Mapping[str, Sequence[GenerationRecord]]", comparison.members)


State = Literal["cold", "warm"]

QUANTIZED_AHEAD = ("gptq",)
"""Quantizations done before loading; the others are done while loading."""

COMPILED = ("compile", "native")
"""Engines whose set-up is compilation, which a cache on disk shortens."""


@dataclass(frozen=True)
class Cost:
    """Seconds before the first token; None if not measured."""

    cold_s: float | None
    warm_s: float | None


@dataclass(frozen=True)
class BreakEven:
    """Break-even of a variant against the baseline."""

    variant: str
    cold_tokens: int | None
    """Tokens until a first run breaks even; 0 if it costs no more than the baseline. None if unknown."""
    warm_tokens: int | None
    """Tokens until a later run breaks even."""
    cost: Cost
    saved_s: float
    """Seconds per token less than the baseline's; negative if the variant is slower."""
    verdict: str | None
    """Verdict on the variant's speed-up; None if there is none."""

    def sentence(self, baseline: str) -> str:
        """Sentence without the full stop."""
        variant = plain_line(self.variant)
        if self.verdict in ("same", "inconclusive") or self.saved_s <= 0:
            why = "is not faster" if self.saved_s <= 0 else f"is not told to be faster ({self.verdict})"
            return f"{variant} {why} than {plain_line(baseline)}, and never pays for its loading"
        times = [
            f"{state} {_tokens(tokens)} ({seconds(cost)} before the first token)"
            for state, tokens, cost in (
                ("warm", self.warm_tokens, self.cost.warm_s),
                ("cold", self.cold_tokens, self.cost.cold_s),
            )
            if tokens is not None
        ]
        untested = ", if the difference is real (not tested)" if self.verdict == "not tested" else ""
        return f"{variant} has paid for itself against {plain_line(baseline)} after: {'; '.join(times)}{untested}"


def cost_of(records: Sequence[GenerationRecord]) -> Cost:
    """Return the cost of a variant before its first token."""
    loads = [record.load for record in records if record.load]
    if not loads:
        return Cost(None, None)
    load_s = statistics.median(load.load_s for load in loads)
    quantized = [load.quantize_s for load in loads if load.quantize_s is not None]
    cold, warm = _setup(records, "cold"), _setup(records, "warm")
    return Cost(
        cold_s=None
        if cold is None or _skips_quantizing(records)
        else load_s + cold + (statistics.median(quantized) if quantized else 0.0),
        warm_s=None if warm is None else load_s + warm,
    )


def _skips_quantizing(records: Sequence[GenerationRecord]) -> bool:
    return any(record.model.load_format == "dummy" and record.variant.quant in QUANTIZED_AHEAD for record in records)


def _setup(records: Sequence[GenerationRecord], state: State) -> float | None:
    engines = [record.engine for record in records if record.engine]
    # The state of the compiler cache is unknown.
    times = [
        engine.setup_s
        for engine in engines
        if engine.setup_s is not None
        and (engine.setup_cache == state or (not engine.setup_cache and engine.name not in COMPILED))
    ]
    if times:
        return statistics.median(times)
    return 0.0 if engines and all(engine.setup_s is None for engine in engines) else None


def break_even(baseline: Row, variant: Row, *, costs: tuple[Cost, Cost]) -> BreakEven | None:
    """Return the break-even in one cell; None if a rate or a cost is unknown.

    Args:
        costs: The baseline's and the variant's.
    """
    if baseline.rate is None or variant.rate is None:
        return None
    before, after = costs
    saved_s = 1 / baseline.rate.value - 1 / variant.rate.value
    cold = _after(before.cold_s, after.cold_s, saved_s)
    warm = _after(before.warm_s, after.warm_s, saved_s)
    if cold is None and warm is None and saved_s > 0:
        return None
    return BreakEven(variant.variant, cold, warm, after, saved_s, variant.call.verdict if variant.call else None)


def _after(before_s: float | None, after_s: float | None, saved_s: float) -> int | None:
    if before_s is None or after_s is None or saved_s <= 0:
        return None
    return max(0, math.ceil((after_s - before_s) / saved_s))


def _tokens(count: int) -> str:
    return f"{count:,} tokens" if count else "at once"
