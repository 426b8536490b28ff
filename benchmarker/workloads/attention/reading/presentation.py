"""How attention is shown beyond its axes and metrics: what its lengths tell together."""

from __future__ import annotations

from benchmarker.report.presentation import Presentation
from benchmarker.workloads.attention.reading.lengths import over_lengths

PRESENTATION = Presentation(remarks=over_lengths)
