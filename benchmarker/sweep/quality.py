"""Quality in a sweep: once for each form, in a process of its own, after everything that is timed.

Variants that differ only in their runtime load the same weights by the same recipe; they share one measurement. The
child's record is temporary: what it found goes into a record of each variant, so that a folder holds one kind of file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarker.comparison.words import reason_words, status_words
from benchmarker.core.console import Terminal
from benchmarker.core.errors import ResultsError
from benchmarker.execution.job import Job
from benchmarker.quality.text import check_text, is_text
from benchmarker.quantization.base import require
from benchmarker.schema.collect import collect
from benchmarker.schema.experiment import QualitySpec
from benchmarker.schema.quality import Quality, TaskResult, baseline_name
from benchmarker.schema.record import RunRecord
from benchmarker.schema.record_io import write_record
from benchmarker.sweep.child import Watch, run_child
from benchmarker.sweep.child_log import TAIL_LINES, CappedLog
from benchmarker.sweep.retries import Fault, fault_of
from benchmarker.sweep.state import Failure, Ledger, Site


def check_inputs(jobs: Iterable[Job]) -> None:
    """Refuse now, and not after hours of timing, what quality cannot be measured on.

    Raises:
        SpecError: The text will not do.
        MissingLibraryError: A library for the text or the tasks is not installed.
    """
    for asked in dict.fromkeys(job.quality for job in jobs):
        if asked.size != "off":
            check_text(asked.text)
        if asked.tasks:
            require("tasks", "lm_eval")


def judge_variants(site: Site, ledger: Ledger, terminal: Terminal) -> None:
    """Measure what was asked for and is not there yet.

    Raises:
        ResultsError: A record cannot be saved.
        KeyboardInterrupt: Ctrl-C.
        SweepTimeoutError: The sweep's time is up.
    """
    for variants in _forms(site):
        newest, job = _newest_records(site.folder, variants), site.job(variants[0])
        wanted = {path: one for path, one in newest if not _is_judged(one, job)}
        if not wanted:
            continue
        terminal.line(f"[quality] {', '.join(variants)}")
        made, fault = _run(site, ledger, terminal, variants[0])
        changes = _changes(job.quality, made, fault)
        for path, record in wanted.items():
            write_record(record.model_copy(update=changes), path)


def _forms(site: Site) -> list[list[str]]:
    """Variants to be judged, those with the same weights together."""
    forms: dict[str, list[str]] = {}
    for name, job in site.asked.jobs.items():
        if job.quality.is_asked:
            recipe = f"{job.model!r} {job.variant.quant} {job.variant.loader_options!r} {job.quality!r}"
            forms.setdefault(recipe, []).append(name)
    return list(forms.values())


def _newest_records(folder: Path, variants: Sequence[str]) -> list[tuple[Path, RunRecord]]:
    """One of each variant that has any."""
    try:
        files = collect([folder]).files
    except ResultsError:
        return []
    newest = {
        record.variant.name: (path, record) for path, record in sorted(files, key=lambda file: file[1].started_at)
    }
    return [newest[name] for name in variants if name in newest]


def _is_judged(record: RunRecord, job: Job) -> bool:
    """Whether all that is asked is there, and was measured as it is asked."""
    asked = job.quality
    return (asked.size == "off" or _is_of(record.quality, job)) and (not asked.tasks or _answers(record.tasks, asked))


def _is_of(found: Quality | None, job: Job) -> bool:
    asked = job.quality
    baseline = baseline_name(asked.baseline or job.model.id, job.model.dtype)
    return (
        found is not None
        and (found.size, found.top_k, found.baseline) == (asked.size, asked.top_k, baseline)
        and is_text(asked.text, found)
    )


def _answers(found: Sequence[TaskResult], asked: QualitySpec) -> bool:
    return bool(found) and all((set(one.asked), one.limit) == (set(asked.tasks), asked.task_limit) for one in found)


def _changes(asked: QualitySpec, made: RunRecord | None, fault: Fault | None) -> dict[str, Any]:
    """Fields of the records: what was measured. Where that failed, why; what a record has from before stays."""
    found: dict[str, Any] = {}
    reason = fault.reason if fault else None
    if made and made.quality:
        found |= {"quality": made.quality, "no_quality": None}
    elif asked.size != "off":
        found["no_quality"] = (made and made.no_quality) or reason
    if made and made.tasks:
        found |= {"tasks": made.tasks, "no_tasks": None}
    elif asked.tasks:
        found["no_tasks"] = (made and made.no_tasks) or reason
    return found


def _lost(asked: QualitySpec, made: RunRecord | None) -> str:
    """What a child that failed was to measure and did not: `quality`, `tasks`, or both."""
    lost = [
        what
        for what, is_asked, found in (
            ("quality", asked.size != "off", made and made.quality),
            ("tasks", bool(asked.tasks), made and made.tasks),
        )
        if is_asked and not found
    ]
    return " and ".join(lost or ["quality"])


def _run(site: Site, ledger: Ledger, terminal: Terminal, variant: str) -> tuple[RunRecord | None, Fault | None]:
    """One child; its record, and why it ended early if it did."""
    path = site.quality_path(variant)
    log = CappedLog(path.with_name(path.name.strip(".")).with_suffix(".log"))
    watch = Watch(path, 0)
    try:
        ended = run_child(
            site.quality_command(variant, path),
            watch=watch,
            log=log,
            # Loading the variant may take that long, and so may the baseline and all the scoring.
            limit_s=lambda _phase: site.settings.load_timeout_s,
            deadline_s=site.deadline_s,
            step=lambda lines: _show(lines, variant, terminal),
        )
    finally:
        path.unlink(missing_ok=True)
    tail = log.last_lines(TAIL_LINES)
    fault = fault_of(ended, watch.record, problem=None, last_line=tail[-1] if tail else None)
    reason = watch.record and (watch.record.no_quality or watch.record.no_tasks)
    if reason:
        fault = Fault("error", reason)
    if fault:
        what = f"{variant}, {_lost(site.job(variant).quality, watch.record)}"
        terminal.line(f"  {what}: {status_words(fault.status)}: {reason_words(fault.reason)}")
        ledger.failures.append(Failure(what=what, fault=fault, log=log.path, tail=tail, alone=site.alone(variant)))
    return watch.record, fault


def _show(lines: Sequence[str], variant: str, terminal: Terminal) -> None:
    for line in lines:
        if not line.startswith(f"{variant}: "):
            terminal.line(f"  {line}")
