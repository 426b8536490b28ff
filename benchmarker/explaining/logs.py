"""Explain from a text: the profiler's tables in it, and the latencies above them where it is a log of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarker.errors import BenchmarkerError, ResultsError
from benchmarker.explaining.tables import TableReport, report_on
from benchmarker.importing.log import import_log
from benchmarker.logtext import read_log
from benchmarker.profiling.table_reader import read_tables
from benchmarker.record import RunRecord


@dataclass(frozen=True)
class LogReading:
    """What one text holds."""

    reports: tuple[TableReport, ...]
    records: tuple[RunRecord, ...]
    """Its runs; none where it has no latencies."""
    why_no_records: str | None
    """In one line, where it has tables and no runs that can be read."""


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
        why = "a table, but no time on a device in it" if tables else "no table of torch.profiler"
        raise ResultsError(f"{path}: {why}; print one with `prof.key_averages().table()`, or give a record")
    try:
        records = import_log(path)
    except BenchmarkerError as error:
        return LogReading(reports, (), str(error))
    return LogReading(reports, records, None)


def is_text(path: Path) -> bool:
    """Whether a path is to be read as a log and not as a record."""
    return path.is_file() and path.suffix != ".json"


def reports_of(readings: Sequence[LogReading]) -> tuple[TableReport, ...]:
    """The tables of several texts, in their order."""
    return tuple(report for reading in readings for report in reading.reports)
