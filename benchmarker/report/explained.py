"""The blocks that `benchmarker explain` prints of records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarker.core.tables import Block, bullets
from benchmarker.report.explanations import explanation_blocks
from benchmarker.schema.registry import workload_of

if TYPE_CHECKING:
    from benchmarker.report.compare import Comparison


def explained_blocks(comparison: Comparison) -> list[Block]:
    """Return a line per cause, the header, the waterfalls, each variant's reason and the differences."""
    workload = workload_of(comparison.workload)
    # With one variant the reason comes first anyway.
    causes = bullets(comparison.reasons) if len(comparison.explained) > 1 else ""
    ceilings, break_evens = workload.predictions(comparison)
    return [
        causes,
        bullets(workload.header(comparison.records)),
        *explanation_blocks(
            comparison.explained,
            contrasts=comparison.contrasts,
            ceilings=ceilings,
            break_evens=break_evens,
            baseline=comparison.baseline or "",
        ),
    ]
