"""Explain from a text: the profiler's tables in it, and the latencies above them where it is a log of runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarker.core.errors import ResultsError, SpecError
from benchmarker.logs.explain_table import TableReport, report_on
from benchmarker.logs.import_log import import_log
from benchmarker.logs.log_text import read_log
from benchmarker.profiling.printed_reader import read_tables
from benchmarker.schema.record import RunRecord


@dataclass(frozen=True)
class LogReading:
    """The profiler tables and the runs of one text."""

    reports: tuple[TableReport, ...]
    records: tuple[RunRecord, ...]
    """A record for each run of the text; none where it has no latencies."""
    why_no_records: str | None = None
    """Why the latencies of the text cannot be used; None where they can be, or where it has none."""


def read_text(path: Path) -> LogReading:
    """The profiler tables of a text, and its runs.

    Raises:
        ResultsError: The text cannot be read, or has no table with times.
    """
    text = read_log(path)
    try:
        tables = read_tables(text)
    except ResultsError as error:
        raise ResultsError(f"{path}: {error}") from error
    reports = tuple(report for table in tables if (report := report_on(table)))
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
