"""Explain from a text: the profiler's tables in it, and the latencies above them where it is a log of runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarker.core.errors import ResultsError, SpecError
from benchmarker.core.log_text import read_log
from benchmarker.logs.explain_table import TableReport, report_on
from benchmarker.logs.import_log import import_log
from benchmarker.profiling.printed_table import read_tables
from benchmarker.schema.record import RunRecord


@dataclass(frozen=True)
class LogReading:
    """What one text holds."""

    reports: tuple[TableReport, ...]
    records: tuple[RunRecord, ...]
    """Its runs; none where it has no latencies."""
    why_no_records: str | None = None
    """Why its latencies cannot be used, where it has some."""


def read_text(path: Path) -> LogReading:
    """All tables of a text, and its runs.

    Raises:
        ResultsError: It cannot be read, or has no table of a device's time.
    """
    text = read_log(path)
    try:
        tables = read_tables(text)
    except ResultsError as error:
        raise ResultsError(f"{path}: {error}") from error
    reports = tuple(report for one in tables if (report := report_on(one)))
    if not reports:
        why = "a table, but no time in it" if tables else "no table of torch.profiler"
        raise ResultsError(f"{path}: {why}; print one with `prof.key_averages().table()`, or give a record")
    try:
        return LogReading(reports, import_log(path))
    except SpecError as error:
        # Only the user knows what is missing, and `import` is where it is given.
        return LogReading(reports, (), f"{error} to `benchmarker import`, and explain its records")
    except ResultsError:
        return LogReading(reports, ())


def is_text(path: Path) -> bool:
    """Whether a path is to be read as a log and not as a record."""
    return path.is_file() and path.suffix != ".json"
