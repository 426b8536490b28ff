"""How token mixers are shown: as any workload, and what the rows say together."""

from __future__ import annotations

from benchmarker.report.presentation import Presentation
from benchmarker.workloads.mixers.reading.remarks import crossovers, remarks
from benchmarker.workloads.mixers.reading.tasks import task_sheets

PRESENTATION = Presentation(
    details=task_sheets, remarks=remarks, first_remarks=crossovers, speed="million tokens per second"
)
