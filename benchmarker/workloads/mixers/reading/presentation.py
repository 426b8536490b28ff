"""How token mixers are shown: as any workload, and what the rows say together."""

from __future__ import annotations

from benchmarker.report.presentation import Presentation
from benchmarker.workloads.mixers.reading.remarks import remarks

PRESENTATION = Presentation(remarks=remarks, speed="million tokens per second")
