"""The blocks that `benchmarker explain` prints of records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarker.core.tables import Block, bullets
from benchmarker.report.explanations import explanation_blocks
from benchmarker.report.presentation import presentation_of

if TYPE_CHECKING:
    from benchmarker.report.compare import Comparison


def explained_blocks(comparison: Comparison) -> list[Block]:
    """Return a line per cause, the header, the waterfalls, each variant's reason and the differences."""
    presentation = presentation_of(comparison.workload)
    # With one variant the reason comes first anyway.
    causes = bullets(comparison.reasons) if len(comparison.explained) > 1 else ""
    return [
        causes,
        bullets(presentation.header(comparison.records)),
        *explanation_blocks(
            comparison.explained,
            contrasts=comparison.contrasts,
            ceilings=presentation.ceilings(comparison),
            break_evens=presentation.break_evens(comparison),
            baseline=comparison.baseline or "",
        ),
    ]
