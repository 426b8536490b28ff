"""A record that shows itself in a notebook as the table that a run prints at its end."""

from __future__ import annotations

from pathlib import Path

from benchmarker.report.markdown import summary
from benchmarker.schema import record_io
from benchmarker.schema.record import RunRecord


def _shown(kind: type[RunRecord]) -> type[RunRecord]:
    """The class of a record that a notebook shows as its table."""

    class ShownRecord(kind):  # type: ignore[misc,valid-type]
        """A record that shows itself in a notebook."""

        def _repr_markdown_(self) -> str:
            return summary(self)

    return ShownRecord


def read_record(path: str | Path) -> RunRecord:
    """Read one record.

    Raises:
        ResultsError: There is none, or it cannot be read.
    """
    record = record_io.read_record(Path(path))
    return _shown(type(record)).model_construct(**dict(record))
