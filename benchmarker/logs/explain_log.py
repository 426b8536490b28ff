"""Reading of logs with profiler tables and timed runs, and of Chrome traces."""

from __future__ import annotations

import gzip
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarker.core.errors import BenchmarkerError, ResultsError, SpecError
from benchmarker.core.tables import code
from benchmarker.logs.log_import import import_log
from benchmarker.logs.log_runs import read_log
from benchmarker.logs.table_report import TableReport, report_on
from benchmarker.logs.tool_results import read_tool_results
from benchmarker.profiling import chrome_trace
from benchmarker.profiling.printed_reader import read_tables
from benchmarker.profiling.printed_table import ProfilerTable, TableRow
from benchmarker.schema.record import RunRecord

_HEAD_BYTES = 1 << 16


@dataclass(frozen=True)
class LogReading:
    reports: tuple[TableReport, ...]
    records: tuple[RunRecord, ...] = ()  # A record for each run of the text.
    why_no_records: str | None = None
    """Reason why the latencies of the text are not used; None if they are used, or if the text has none."""


def is_log_or_trace(path: Path) -> bool:
    return path.is_file() and (path.suffix != ".json" or _is_trace(path))


def read_log_or_trace(path: Path) -> LogReading:
    """Read the profiler tables of a text and its runs, or the kernels of a Chrome trace. Raises ResultsError."""
    if _is_trace(path):
        return LogReading(tuple(report for table in _tables_of_trace(path) if (report := report_on(table))))
    text = read_log(path)
    try:
        tables = read_tables(text)
    except ResultsError as error:
        raise ResultsError(f"{path}: {error}") from error
    reports = tuple(report for table in tables if (report := report_on(table)))
    if not reports:
        if not tables and read_tool_results(path):
            raise ResultsError(f"{path}: results of another benchmark; give it to `benchmarker import`")
        problem = "a profiler table without times" if tables else "no table of torch.profiler"
        raise ResultsError(f"{path}: {problem}; print one with `prof.key_averages().table()`, or give a record")
    try:
        return LogReading(reports, import_log(path))
    except SpecError as error:
        # Only the user can add the missing fact, as an option of `import`.
        return LogReading(reports, (), f"{error} to {code('benchmarker import')}, and explain its records")
    except ResultsError:
        return LogReading(reports)


def _is_trace(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if head.startswith(b"\x1f\x8b"):
            with gzip.open(path) as unpacked:
                head = unpacked.read(_HEAD_BYTES)
    except (OSError, EOFError):
        # A damaged gzip file counts as a trace, whose reader then reports the problem.
        return path.suffix == ".gz"
    is_json = head.lstrip()[:1] in (b"{", b"[")
    return is_json and any(key in head for key in (b'"traceEvents"', b'"deviceProperties"', b'"ph"'))


def _tables_of_trace(path: Path) -> list[ProfilerTable]:
    """Return a table of kernels per device, or a table of operators if there are no kernels. Raises ResultsError."""
    events = chrome_trace.read_trace(path)
    table = ProfilerTable(line=0, rows=(), title=path.name, process=None, text="")
    devices: list[int] = []
    try:
        kernels = chrome_trace.complete_events(events, chrome_trace.DEVICE_CATEGORIES)
        devices = sorted({chrome_trace.device_interval(kernel).lane[0] for kernel in kernels})
        works = {f"device {device}": chrome_trace.device_work(events, device_indices=[device]) for device in devices}
        if not works:
            work = chrome_trace.cpu_work(events)
            rows = [TableRow(each.name, "operator", each.calls, self_cpu_s=each.total_s) for each in work.kernels]
            return [replace(table, rows=tuple(rows), cpu_s=work.kernel_s)]
    except BenchmarkerError as error:
        reason = error if devices else "no kernel and no operator in this trace; profile with torch.profiler"
        raise ResultsError(f"{path}: {reason}") from error
    tables = []
    for name, work in works.items():
        rows = [TableRow(each.name, "kernel", each.calls, self_device_s=each.total_s) for each in work.kernels]
        of_device = replace(table, rows=tuple(rows), process=name if len(works) > 1 else None, device="CUDA")
        tables.append(replace(of_device, device_s=work.kernel_s, span_s=work.span_s, busy_s=work.busy_s))
    return tables
