"""A comparison, explained: what `benchmarker explain` prints of records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarker.core.tables import bullets
from benchmarker.report.explanations import explanations_to_markdown
from benchmarker.report.presentation import presentation_of

if TYPE_CHECKING:
    from benchmarker.report.compare import Comparison


def explained_to_markdown(comparison: Comparison) -> str:
    """A line a cause, then what was measured, the waterfalls, each variant's reason, the differences and what a
    workload adds."""
    presentation = presentation_of(comparison.workload)
    body = explanations_to_markdown(
        comparison.explained,
        contrasts=comparison.contrasts,
        ceilings=presentation.ceilings(comparison),
        break_evens=presentation.break_evens(comparison),
        baseline=comparison.baseline or "",
    )
    # Of one variant the body begins with the reason.
    answer = f"{bullets(comparison.reasons)}\n\n" if len(comparison.explained) > 1 and comparison.reasons else ""
    return f"{answer}{bullets(presentation.header(comparison.records))}\n\n{body}"
