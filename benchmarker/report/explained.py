"""A comparison, explained: what `benchmarker explain` prints of records."""

from __future__ import annotations

from benchmarker.comparison.compare import Comparison
from benchmarker.comparison.rows import Row
from benchmarker.core.tables import bullets, escaped
from benchmarker.explain.numbers import rate
from benchmarker.explain.values import Explanation
from benchmarker.report.explanations import ceiling_words, explanations_to_markdown
from benchmarker.report.header import header
from benchmarker.workloads.generation.break_even import break_even, cost_of


def explained_to_markdown(comparison: Comparison) -> str:
    """What was measured, the waterfalls, each variant's reason, the differences and the break-even."""
    body = explanations_to_markdown(
        comparison.explained,
        contrasts=comparison.contrasts,
        ceilings=_ceilings(comparison),
        break_evens=_break_evens(comparison),
        baseline=comparison.baseline or "",
    )
    return f"{bullets(header(comparison.records))}\n\n{body}"


def _ceilings(comparison: Comparison) -> list[str]:
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


def _in_a_graph(one: Explanation, comparison: Comparison) -> Row | None:
    """The same form of the model in the same cell, its steps replayed as a graph."""
    form = _form(comparison, one.variant)
    rows = (row for row in comparison.rows if row.engine == "cuda_graph" and row.cell == one.cell)
    return next((row for row in rows if _form(comparison, row.variant) == form), None)


def _form(comparison: Comparison, variant: str) -> tuple[object, ...]:
    record = comparison.members[variant][0]
    return record.variant.quant, tuple(sorted(record.variant.options.items())), record.model.dtype


def _break_evens(comparison: Comparison) -> list[str]:
    """Of every variant with a rate and a cost, in the cell that was profiled."""
    baseline = comparison.baseline
    cells = [one.cell for one in comparison.explained if isinstance(one, Explanation)]
    if baseline is None or not cells or comparison.differences:
        return []
    records = comparison.members
    rows = {row.variant: row for row in comparison.rows if row.cell == cells[0]}
    base = rows.get(baseline)
    if base is None:
        return []
    found = [
        break_even(base, row, costs=(cost_of(records[baseline]), cost_of(records[name])))
        for name, row in rows.items()
        if name != baseline
    ]
    return [one.sentence(baseline) for one in found if one]
