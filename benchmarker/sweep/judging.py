"""What a workload measures apart from time, such as quality: once for each form, after everything that is timed.

Each has a process of its own. Variants of the same form, such as one model by several engines, share one measurement.
The child's record is temporary: what it holds goes into a record of each variant, so that a folder holds one kind of
file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarker.core.console import Terminal
from benchmarker.core.errors import ResultsError
from benchmarker.schema.collect import collect
from benchmarker.schema.job import Job
from benchmarker.schema.record import Missing, RunRecord
from benchmarker.schema.record_io import write_record
from benchmarker.schema.registry import workload_of
from benchmarker.schema.status_words import status_words
from benchmarker.sweep.child import Watch, run_child
from benchmarker.sweep.child_log import TAIL_LINES, CappedLog
from benchmarker.sweep.retries import Fault, fault_of
from benchmarker.sweep.state import Failure, SweepContext, SweepState
from benchmarker.workloads.session import Judging


def check_inputs(jobs: Iterable[Job]) -> None:
    """Refuse now, and not after hours of timing, what cannot be measured then.

    Raises:
        BenchmarkerError: An input will not do, or a library is not installed.
    """
    for job in jobs:
        judging = workload_of(job.workload).judging()
        if judging and judging.form(job):
            judging.check(job)


def judge_variants(context: SweepContext, state: SweepState, terminal: Terminal) -> None:
    """Measure what was asked for and is not there yet.

    Raises:
        ResultsError: A record cannot be saved.
        KeyboardInterrupt: Ctrl-C.
        SweepTimeoutError: The sweep's time is up.
    """
    judging = context.workload.judging()
    for variants, wanted in unjudged(context).items():
        assert judging is not None
        terminal.line(f"[{judging.name}] {', '.join(variants)}")
        judged, fault = _run(context, judging, state, terminal, variants[0])
        why = Missing(error_kind=fault.kind, reason=fault.reason) if fault else None
        changes = judging.changes(context.job(variants[0]), judged, why)
        for path, record in wanted.items():
            write_record(record.model_copy(update=changes), path)


def unjudged(context: SweepContext) -> dict[tuple[str, ...], dict[Path, RunRecord]]:
    """The newest record of each variant that has none with what was asked for, by the variants that share a
    measurement of it."""
    judging = context.workload.judging()
    lacking = {}
    for variants in _forms(context, judging) if judging else []:
        assert judging is not None
        job, wanted = context.job(variants[0]), {}
        for records in _records_of(context.folder, variants):
            if not any(judging.is_done(record, job) for record in records.values()):
                newest = list(records)[-1]
                wanted[newest] = records[newest]
        if wanted:
            lacking[tuple(variants)] = wanted
    return lacking


def _forms(context: SweepContext, judging: Judging[Any, Any]) -> list[list[str]]:
    """Variants to be judged, those of the same form together."""
    forms: dict[str, list[str]] = {}
    for name, job in context.jobs.items():
        if form := judging.form(job):
            forms.setdefault(form, []).append(name)
    return list(forms.values())


def _records_of(folder: Path, variants: Sequence[str]) -> list[dict[Path, RunRecord]]:
    """The records of each variant that has any, oldest first."""
    try:
        files = sorted(collect([folder]).files, key=lambda file: file[1].started_at)
    except ResultsError:
        return []
    by_variant = [{path: record for path, record in files if record.variant.name == name} for name in variants]
    return [records for records in by_variant if records]


def _run(
    context: SweepContext, judging: Judging[Any, Any], state: SweepState, terminal: Terminal, variant: str
) -> tuple[RunRecord | None, Fault | None]:
    """One child; its record, and why it ended early if it did."""
    path = context.quality_path(variant)
    log = CappedLog(path.with_name(path.name.strip(".")).with_suffix(".log"))
    watch = Watch(path, 0)
    try:
        ended = run_child(
            context.quality_command(variant, path),
            starter=context.starter,
            round_number=None,
            watch=watch,
            log=log,
            # Loading the variant may take that long, and so may the baseline and all the scoring.
            limit_s=lambda _phase: context.settings.load_timeout_s,
            deadline_s=context.deadline_s,
            step=lambda lines: _show(lines, variant, terminal),
        )
    finally:
        path.unlink(missing_ok=True)
    tail = log.last_lines(TAIL_LINES)
    fault = fault_of(ended, watch.record, problem=None, last_line=tail[-1] if tail else None)
    if watch.record and (missing := judging.missing(watch.record)):
        fault = Fault(missing.error_kind, missing.reason)
    if fault:
        what = f"{variant}, {judging.lost(context.job(variant), watch.record)}"
        terminal.line(f"  {what}: {status_words(fault.status)}: {fault.reason}")
        state.failures.append(Failure(what=what, fault=fault, log=log.path, tail=tail, alone=context.alone(variant)))
    return watch.record, fault


def _show(lines: Sequence[str], variant: str, terminal: Terminal) -> None:
    for line in lines:
        if not line.startswith(f"{variant}: "):
            terminal.line(f"  {line}")
