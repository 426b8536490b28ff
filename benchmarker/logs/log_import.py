"""`benchmarker import`: records from the runs of an old log.

A fact that only the user has, such as the name of the device, is requested in one line and never guessed.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from benchmarker.core.errors import ResultsError, SpecError, did_you_mean
from benchmarker.core.formatting import slug
from benchmarker.core.tables import lines_of
from benchmarker.logs.log_runs import QUANTS, Evidence, LoggedRun, find_runs, read_log
from benchmarker.profiling.printed_reader import read_tables
from benchmarker.profiling.printed_table import ProfilerTable
from benchmarker.schema.record import RunRecord
from benchmarker.schema.record_io import write_json
from benchmarker.schema.registry import LOG_RECORD

DeviceKind = Literal["cuda", "rocm", "cpu"]

# `Device: cuda` is also printed on ROCm.
_KINDS: dict[DeviceKind, re.Pattern[str]] = {
    "rocm": re.compile(r"roctracer|rocprofiler|\brocm|\bHIP\b|\bCijk_|\bAMD (Radeon|Instinct)|\bgfx\d", re.IGNORECASE),
    "cuda": re.compile(r"\bNVIDIA\b|\bCUPTI\b|\bnvjet_|\bampere_\w*gemm|\bGeForce\b", re.IGNORECASE),
    "cpu": re.compile(r"\bDevice: cpu\b"),
}


@dataclass(frozen=True)
class Log:
    source: str
    sha256: str
    lines: tuple[str, ...]
    tables: tuple[ProfilerTable, ...]
    kind: DeviceKind | None
    device: str | None
    day: str | None
    model: str | None
    command: str


def import_log(
    path: Path,
    *,
    model: str | None = None,
    device: str | None = None,
    kind: str | None = None,
    quants: Sequence[str] = (),
    day: str | None = None,
) -> tuple[RunRecord, ...]:
    """Return a record for each run of a log. Several runs of one variant are rounds 0, 1 and so on. The options of
    `benchmarker import` replace facts of the log.

    Raises:
        ResultsError: The log cannot be read, has no run, is cut short or contradicts itself.
        SpecError: An option is wrong, or is required.
    """
    _check(kind, quants, day)
    text = read_log(path)
    lines = lines_of(text)
    try:
        runs = find_runs(lines)
        tables = read_tables(text)
    except ResultsError as error:
        raise ResultsError(f"{path}: {error}") from error
    runs = _with_variants(path, runs, quants)
    if nameless := next((run for run in runs if model is None and run.model is None), None):
        raise SpecError(f"{path}: line {nameless.line}: this run has no name of a model; give it with --model")
    options = {"model": model, "device": device, "kind": kind, "quant": ",".join(quants), "day": day}
    arguments = [argument for name, value in options.items() if value for argument in (f"--{name}", value)]
    # If the log names two kinds of devices, the kind is unknown.
    matching = [name for name, pattern in _KINDS.items() if pattern.search(f"{device or ''}\n{text}")]
    kinds = [name for name in _KINDS if name == kind] or matching
    log = Log(
        source=path.name,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        lines=tuple(lines),
        tables=tables,
        kind=kinds[0] if len(kinds) == 1 else None,
        device=device,
        day=day,
        model=model,
        command=shlex.join(["benchmarker", "import", str(path), *arguments]),
    )
    to_record = import_module(LOG_RECORD).to_record
    rounds: Counter[str | None] = Counter()
    records: list[RunRecord] = []
    for run, following in zip_longest(runs, runs[1:]):
        last_line = following.line if following else len(lines)
        records.append(to_record(run, log, last_line=last_line, earlier=rounds[run.name]))
        rounds[run.name] += 1
    return tuple(records)


def write_imports(records: Sequence[RunRecord], folder: Path) -> list[Path]:
    """Write each record to its own file, whose name is the same for every import of the log. Raises ResultsError."""
    paths = [folder / f"{record.run_id}-{slug(record.variant.name)}.json" for record in records]
    for record, path in zip(records, paths, strict=True):
        write_json(record, path)
    return paths


def _check(kind: str | None, quants: Sequence[str], day: str | None) -> None:
    for quant in quants:
        if quant not in QUANTS:
            raise SpecError(f"--quant {quant}: no such quantization{did_you_mean(quant, QUANTS)}")
    try:
        is_day = day is None or date.fromisoformat(day).isoformat() == day
    except ValueError:
        is_day = False
    if not is_day:
        raise SpecError(f"--day {day}: write it as 2025-10-14")
    if kind is not None and kind not in _KINDS:
        raise SpecError(f"--kind {kind}: no such kind of device{did_you_mean(kind, _KINDS)}")


def _with_variants(path: Path, runs: Sequence[LoggedRun], quants: Sequence[str]) -> tuple[LoggedRun, ...]:
    """Return the runs with their variants, from `--quant` or else the log. Raises ResultsError or SpecError."""
    if not any(run.cells for run in runs):
        raise ResultsError(
            f"{path}: no run found; a log has lines such as "
            f"`run 1/5: latency 1.3832 s, 50 tokens, 36.15 tok/s, memory 7.59 GiB`; docs/imports.md lists other files, "
            "and `benchmarker explain` reads a profiler's table"
        )
    if quants:
        if len(quants) != len(runs):
            raise SpecError(
                f"{path}: --quant names {len(quants)} and the log has {_run_count(runs)}; name one for each"
            )
        option = f"given: --quant {','.join(quants)}"
        return tuple(
            replace(run, evidence=Evidence(quant, option), name=quant) for run, quant in zip(runs, quants, strict=True)
        )
    if unknown := next((run for run in runs if run.evidence is None), None):
        raise SpecError(
            f"{path}: line {unknown.line}: the variant of this run is unknown; the log has {_run_count(runs)}: "
            f"name one for each, in their order, as in --quant {','.join(QUANTS[: len(runs)])}"
        )
    return tuple(runs)


def _run_count(runs: Sequence[LoggedRun]) -> str:
    lines = ", ".join(str(run.line) for run in runs)
    return f"1 run (line {lines})" if len(runs) == 1 else f"{len(runs)} runs (lines {lines})"
