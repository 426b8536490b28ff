"""What was predicted of text generation beside what was reached, and when a variant has paid for its loading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from benchmarker.core.tables import escaped
from benchmarker.explain.sentence_numbers import rate
from benchmarker.explain.values import Explanation
from benchmarker.report.explanations import ceiling_words
from benchmarker.workloads.generation.reading.break_even import break_even, cost_of
from benchmarker.workloads.generation.reading.rows import GenerationRow
from benchmarker.workloads.generation.record import GenerationRecord

if TYPE_CHECKING:
    from benchmarker.report.compare import Comparison


def ceilings(comparison: Comparison) -> list[str]:
    """What the `cuda_graph` engine was predicted to reach and what it reached, a sentence a variant."""
    if comparison.differences:
        return []
    explained = [explanation for explanation in comparison.explained if isinstance(explanation, Explanation)]
    pairs = [(explanation, explanation.ceiling, _in_a_graph(explanation, comparison)) for explanation in explained]
    return [
        f"{escaped(explanation.variant)} was to reach {ceiling_words(ceiling, explanation.unit)} in a graph; "
        f"{escaped(graph.variant)} decodes {rate(graph.decode_tokens_per_s)}"
        for explanation, ceiling, graph in pairs
        if ceiling and graph and graph.decode_tokens_per_s
    ]


def _in_a_graph(explanation: Explanation, comparison: Comparison) -> GenerationRow | None:
    """The row of the same form in the same cell whose steps are replayed as a graph; None where there is none."""
    form = _form(comparison, explanation.variant)
    rows = (row for row in _rows(comparison) if row.engine == "cuda_graph" and row.cell == explanation.cell)
    return next((row for row in rows if _form(comparison, row.variant) == form), None)


def _form(comparison: Comparison, variant: str) -> tuple[object, ...]:
    record = _members(comparison)[variant][0]
    return record.variant.quant, tuple(sorted(record.variant.options.items())), record.model.dtype


def break_evens(comparison: Comparison) -> list[str]:
    """When each variant has paid for itself in the cell that was profiled, a sentence a variant."""
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
