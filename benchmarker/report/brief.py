"""What is printed first: the answer, one table, and where the rest is."""

from __future__ import annotations

from benchmarker.comparison.ranking import ranking_of
from benchmarker.comparison.recommend import Recommendation
from benchmarker.comparison.rows import Results
from benchmarker.core.formatting import plural
from benchmarker.core.tables import Block, Sheet, bullets, code
from benchmarker.report.answer import answer
from benchmarker.report.first_table import first_table
from benchmarker.report.other_cells import other_cells
from benchmarker.report.recommendation import budget_lines, recommendation_lines
from benchmarker.report.sheets import forced, left_out, where
from benchmarker.schema.registry import workload_of

MOST_CAVEATS = 4
"""The most important ones come first; the rest is only counted."""


def brief(results: Results, recommendation: Recommendation | None = None, *, sheet: Sheet | None = None) -> list[Block]:
    """The answer, the table, and where everything else is.

    Args:
        recommendation: The answer to a budget, in place of the general one.
        sheet: A table in place of the first one.
    """
    ranking = ranking_of(results)
    lines = recommendation_lines(results, recommendation) if recommendation else answer(results, ranking)
    elsewhere = other_cells(results, ranking.cell) if sheet is None and recommendation is None else None
    blocks: list[Block] = [
        "\n".join([*forced(results), *lines]),
        where(results),
        sheet or first_table(ranking),
        *([elsewhere] if elsewhere else []),
    ]
    if recommendation:
        blocks.append(bullets(budget_lines(recommendation)))
    workload = workload_of(results.workload)
    blocks.append(bullets(workload.remarks(results.rows, results.baseline, brief=True)))
    caveats = workload.caveats(results.records, results.rows)
    hidden = max(0, len(caveats) - MOST_CAVEATS)
    return [*blocks, bullets([*caveats[:MOST_CAVEATS], *left_out(results)]), _rest(results, hidden)]


def _rest(results: Results, hidden: int) -> str:
    """What `--all` adds.

    Args:
        hidden: Caveats that were not printed.
    """
    cells = len({row.cell for row in results.rows}) - 1
    parts = [
        *([plural(cells, "more cell", "more cells")] if cells > 0 else []),
        *([plural(hidden, "more caveat", "more caveats")] if hidden else []),
        *(["reasons"] if results.reasons else []),
        "all columns",
    ]
    return f"--all: {', '.join(parts)}; --columns, --sort, --format; {code('benchmarker report')} draws."
