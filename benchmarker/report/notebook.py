"""A record that shows itself in a notebook as the table that a run prints at its end."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from benchmarker.report.markdown import summary
from benchmarker.schema import record_io
from benchmarker.schema.record import RunRecord


class ShownRecord(RunRecord):
    """A record that shows itself in a notebook."""

    def _repr_markdown_(self) -> str:
        return summary(self)


def read_record(path: str | Path) -> ShownRecord:
    """Read one record. It is of its workload's own class too.

    Raises:
        ResultsError: There is none, or it cannot be read.
    """
    record = record_io.read_record(Path(path))
    # The workload's fields come before those of any record.
    kind = type(ShownRecord.__name__, (type(record), ShownRecord), {"__module__": __name__})
    return cast("type[ShownRecord]", kind).model_construct(**dict(record))
