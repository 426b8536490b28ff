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
    """What the graph runtime was predicted to reach, beside what it did, where both were measured."""
    if comparison.differences:
        return []
    explained = [one for one in comparison.explained if isinstance(one, Explanation)]
    pairs = [(one, one.ceiling, _in_a_graph(one, comparison)) for one in explained]
    return [
        f"{escaped(one.variant)} was to reach {ceiling_words(ceiling, one.unit)} in a graph; {escaped(graph.variant)} "
        f"decodes {rate(graph.decode_tokens_per_s)}"
        for one, ceiling, graph in pairs
        if ceiling and graph and graph.decode_tokens_per_s
    ]


def _in_a_graph(one: Explanation, comparison: Comparison) -> GenerationRow | None:
    """The same form of the model in the same cell, its steps replayed as a graph."""
    form = _form(comparison, one.variant)
    rows = (row for row in _rows(comparison) if row.engine == "cuda_graph" and row.cell == one.cell)
    return next((row for row in rows if _form(comparison, row.variant) == form), None)


def _form(comparison: Comparison, variant: str) -> tuple[object, ...]:
    record = _members(comparison)[variant][0]
    return record.variant.quant, tuple(sorted(record.variant.options.items())), record.model.dtype


def break_evens(comparison: Comparison) -> list[str]:
    """Of every variant with a rate and a cost, in the cell that was profiled."""
    baseline = comparison.baseline
    cells = [one.cell for one in comparison.explained if isinstance(one, Explanation)]
    if baseline is None or not cells or comparison.differences:
        return []
    records = _members(comparison)
    rows = {row.variant: row for row in _rows(comparison) if row.cell == cells[0]}
    base = rows.get(baseline)
    if base is None:
        return []
    found = [
        break_even(base, row, costs=(cost_of(records[baseline]), cost_of(records[name])))
        for name, row in rows.items()
        if name != baseline
    ]
    return [one.sentence(baseline) for one in found if one]


def _rows(comparison: Comparison) -> Sequence[GenerationRow]:
    return cast("Sequence[GenerationRow]", comparison.rows)


def _members(comparison: Comparison) -> Mapping[str, Sequence[GenerationRecord]]:
    return cast("Mapping[str, Sequence[GenerationRecord]]", comparison.members)
