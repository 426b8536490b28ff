"""A comparison, explained: what `benchmarker explain` prints of records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarker.core.tables import bullets
from benchmarker.report.explanations import explanations_to_markdown
from benchmarker.schema.registry import workload_of

if TYPE_CHECKING:
    from benchmarker.report.compare import Comparison


def explained_to_markdown(comparison: Comparison) -> str:
    """A line a cause, then what was measured, the waterfalls, each variant's reason, the differences and what a
    workload adds."""
    workload = workload_of(comparison.workload)
    ceilings, break_evens = workload.predictions(comparison)
    body = explanations_to_markdown(
        comparison.explained,
        contrasts=comparison.contrasts,
        ceilings=ceilings,
        break_evens=break_evens,
        baseline=comparison.baseline or "",
    )
    # Of one variant the body begins with the reason.
    answer = f"{bullets(comparison.reasons)}\n\n" if len(comparison.explained) > 1 and comparison.reasons else ""
    return f"{answer}{bullets(workload.header(comparison.records))}\n\n{body}"
