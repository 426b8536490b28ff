"""Quality in a sweep: once for each form, in a process of its own, after everything that is timed.

Variants that differ only in their runtime load the same weights by the same recipe; they share one measurement. The
child's record is temporary: what it found goes into a record of each variant, so that a folder holds one kind of file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarker.collect import collect
from benchmarker.errors import ResultsError
from benchmarker.record import RunRecord
from benchmarker.recordfile import write_record
from benchmarker.report.words import reason_words, status_words
from benchmarker.spec import QualitySpec
from benchmarker.sweeping.child import Watch, run_child
from benchmarker.sweeping.faults import Fault, fault_of
from benchmarker.sweeping.log import TAIL_LINES, CappedLog
from benchmarker.sweeping.site import Failure, Ledger, Site
from benchmarker.terminal import Terminal


def judge_variants(site: Site, ledger: Ledger, terminal: Terminal) -> None:
    """Measure what was asked for and is not there yet.

    Raises:
        ResultsError: A record cannot be saved.
        KeyboardInterrupt: Ctrl-C.
        SweepTimeoutError: The sweep's time is up.
    """
    for variants in _forms(site):
        newest = _newest_records(site.folder, variants)
        wanted = {path: one for path, one in newest if not _is_judged(one, site.job(variants[0]).quality)}
        if not wanted:
            continue
        terminal.line(f"[quality] {', '.join(variants)}")
        made, fault = _run(site, ledger, terminal, variants[0])
        changes = {
            "quality": made.quality if made else None,
            "tasks": made.tasks if made else (),
            "no_tasks": made.no_tasks if made else None,
            "no_quality": fault.reason if fault and not (made and made.quality) else None,
        }
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


def _is_judged(record: RunRecord, asked: QualitySpec) -> bool:
    found = (record.quality.size, record.quality.top_k) if record.quality else ("off", asked.top_k)
    return found == (asked.size, asked.top_k) and bool(record.tasks) == bool(asked.tasks)


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
        what = f"{variant}, quality"
        terminal.line(f"  {what}: {status_words(fault.status)}: {reason_words(fault.reason)}")
        ledger.failures.append(Failure(what=what, fault=fault, log=log.path, tail=tail, alone=site.alone(variant)))
    return watch.record, fault


def _show(lines: Sequence[str], variant: str, terminal: Terminal) -> None:
    for line in lines:
        if not line.startswith(f"{variant}: "):
            terminal.line(f"  {line}")
