"""What follows from a printed profiler table beside its categories: the host's side of it, and kernels in 32 bits."""

from __future__ import annotations

from benchmarker.core.formatting import percent, seconds
from benchmarker.explain.values import code
from benchmarker.logs.explain_table import TableReport
from benchmarker.profiling.categories import category, is_float32
from benchmarker.profiling.printed_table import ProfilerTable, TableRow

_WORTH_A_LINE = 0.05
_BUSY = 0.90
_LAUNCH_S = 20e-6
"""Launches that take longer on average have waited for room in the queue; one by itself takes some microseconds."""
_FULL_QUEUE = "Command Buffer Full"
_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "hipLaunchKernel", "hipModuleLaunchKernel")


def singles_in_full(report: TableReport) -> list[str]:
    """Products and attention in 32-bit floats, which run without the tensor cores."""
    rows = [row for row in report.table.kernels if is_float32(row.name) and _is_arithmetic(row)]
    own_s = sum(row.self_device_s or 0.0 for row in rows)
    if report.phase.by == "cpu" or own_s < _WORTH_A_LINE * report.table.total_s:
        return []
    largest = max(rows, key=lambda row: row.self_device_s or 0.0)
    return [
        f"{percent(own_s / report.table.total_s)} of the kernel time is products or attention in 32-bit floats, most "
        f"of it in {code(largest.name)}: 16 bits would run on the tensor cores"
    ]


def against_the_host(report: TableReport) -> list[str]:
    """The device's time beside that of the host's rows, which may be of several threads and leave Python's out."""
    table = report.table
    if table.device_s is None or not table.cpu_s:
        return []
    busy = table.device_s / table.cpu_s
    both = f"{seconds(table.device_s)} of kernels in {seconds(table.cpu_s)} of the host's rows"
    if busy > 1:
        sentences = [
            f"{both}: either kernels ran at once, on several streams, or the host's rows leave some of the time out"
        ]
    elif busy >= _BUSY:
        sentences = [f"{both}, {percent(busy)}: as far as those cover the time, the device hardly waits"]
    else:
        sentences = [f"{both}, {percent(busy)}: with the profiler on, and the rows may be of several threads"]
    return [*sentences, *_full_queue(table), *_communicating(table)]


def _full_queue(table: ProfilerTable) -> list[str]:
    """Whether the host waited for the device to take its launches."""
    waits_s = sum(row.self_cpu_s or 0.0 for row in table.rows if row.name == _FULL_QUEUE)
    launches = [row for row in table.rows if row.name in _LAUNCHES]
    slow_s = sum(row.self_cpu_s or 0.0 for row in launches if (row.self_cpu_s or 0.0) > _LAUNCH_S * row.calls)
    if waits_s + slow_s < _WORTH_A_LINE * (table.cpu_s or 0.0):
        return []
    return [
        f"the host spent {seconds(waits_s + slow_s)} on launches that waited for room in the queue: it is ahead of the "
        "device, and its launches are no cost"
    ]


def _communicating(table: ProfilerTable) -> list[str]:
    own_s = sum(table.own_s(row) for row in table.listed if category(row.name) == "communication")
    if own_s < _WORTH_A_LINE * table.total_s:
        return []
    return [
        f"communication is {percent(own_s / table.total_s)} of the kernels' sum, which is not lost time: what of it "
        "runs beside other kernels costs nothing, and a table does not tell how much that is"
    ]


def _is_arithmetic(row: TableRow) -> bool:
    return category(row.name) in ("matmul", "attention")
