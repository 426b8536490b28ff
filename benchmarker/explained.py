"""A comparison, explained: what `benchmarker explain` prints of records."""

from __future__ import annotations

from benchmarker.comparison import Comparison
from benchmarker.explaining.breakeven import break_even, cost_of
from benchmarker.explaining.markdown import explanations_to_markdown
from benchmarker.explaining.values import Explanation
from benchmarker.report.header import header


def explained_to_markdown(comparison: Comparison) -> str:
    """What was measured, the waterfalls, each variant's reason, the differences and the break-even."""
    head = "\n".join(f"- {line}" for line in header(comparison.records))
    body = explanations_to_markdown(
        comparison.explained,
        contrasts=comparison.contrasts,
        break_evens=_break_evens(comparison),
        baseline=comparison.baseline or "",
    )
    return f"{head}\n\n{body}"


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
