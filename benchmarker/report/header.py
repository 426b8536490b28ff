"""The lines above a table: what was measured, on what, with what, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from benchmarker.comparison.rows import Results
from benchmarker.core.formatting import plural
from benchmarker.core.tables import escaped, plain_line
from benchmarker.schema.record import RunRecord

RecordT = TypeVar("RecordT", bound=RunRecord)
PACKAGES = ("torch", "transformers", "torchao", "bitsandbytes", "optimum", "gptqmodel")
"""Named in the header; the record holds more."""


def plain_header(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """What was measured, on what, with what, and how."""
    return f"workload: {escaped(records[0].workload)}", *machine_lines(records)


def plain_title(results: Results) -> str:
    """Return the title of a page: `attention on NVIDIA H100 80GB HBM3`."""
    devices = dict.fromkeys(plain_line(record.environment.device.name) for record in results.records)
    return f"{plain_line(results.workload)} on {', '.join(devices)}"


def machine_lines(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """The lines of device, versions and procedure."""
    devices = each(records, lambda record: record.environment.device.name)
    programs = each(records, lambda record: f"benchmarker {record.benchmarker}")
    drivers = each(records, _platform)
    return (
        f"device: {devices}{in_brackets(drivers)}",
        f"versions: {'; '.join(filter(None, (programs, _packages(records))))}",
        f"measured: {_procedure(records)}",
    )


def each(records: Sequence[RecordT], value_of: Callable[[RecordT], str]) -> str:
    """The values that the records have, each once, with commas between them."""
    return ", ".join(escaped(value) for value in dict.fromkeys(map(value_of, records)) if value)


def in_brackets(*parts: str) -> str:
    """` (first, second)`, to stand behind a name; empty parts are left out."""
    words = ", ".join(filter(None, parts))
    return f" ({words})" if words else ""


def _platform(record: RunRecord) -> str:
    device = record.environment.device
    if device.kind == "cpu":
        return plural(record.environment.threads, "thread", "threads") if record.environment.threads else ""
    runtime = f"{'ROCm' if device.kind == 'rocm' else 'CUDA'} {device.runtime}" if device.runtime else ""
    return ", ".join(filter(None, (runtime, f"driver {device.driver}" if device.driver else "")))


def _packages(records: Sequence[RunRecord]) -> str:
    """`torch 2.13.0, transformers 5.1.0 or 5.2.0`."""
    versions: dict[str, dict[str, None]] = {}
    for record in records:
        for name in PACKAGES:
            if name in record.environment.packages:
                versions.setdefault(name, {})[record.environment.packages[name]] = None
    return ", ".join(f"{escaped(name)} {escaped(' or '.join(numbers))}" for name, numbers in versions.items())


def _procedure(records: Sequence[RunRecord]) -> str:
    """`5 processes a variant, 10 timed runs a cell after at least 3 warm-ups, 2026-01-31`."""
    processes: dict[str, int] = {}
    for record in records:
        processes[record.variant.name] = processes.get(record.variant.name, 0) + 1
    runs = each(records, lambda record: str(record.procedure.get("runs", "")))
    warmup = each(records, lambda record: str(record.procedure.get("warmup", "")))
    counts = sorted(set(processes.values()))
    many = f"{counts[0]} to {counts[-1]} processes" if len(counts) > 1 else plural(counts[0], "process", "processes")
    repeats = f", {runs} timed runs a cell after at least {warmup} warm-ups" if runs and warmup else ""
    days = sorted({record.started_at[:10] for record in records})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    forks = " (forks of one a round that imported the libraries)" if any(record.forked for record in records) else ""
    return f"{many} a variant{forks}{repeats}, {escaped(when)}"
