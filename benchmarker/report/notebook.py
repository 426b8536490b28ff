"""A record that shows itself in a notebook as the table that a run prints at its end."""

from __future__ import annotations

from pathlib import Path

from benchmarker.report.markdown import summary
from benchmarker.schema import record_io as recordfile
from benchmarker.workloads.generation.record import GenerationRecord


class ShownRecord(GenerationRecord):
    """A record with a face."""

    def _repr_markdown_(self) -> str:
        return summary(self)


def read_record(path: str | Path) -> ShownRecord:
    """Read one record.

    Raises:
        ResultsError: There is none, or it cannot be read.
    """
    return ShownRecord.model_construct(**dict(recordfile.read_record(Path(path))))
