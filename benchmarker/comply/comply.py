"""`benchmarker comply`: check the measurements of a sweep on this machine, and write comply.json to its folder."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from benchmarker import __version__
from benchmarker.comparison.results import results_of_records
from benchmarker.comply.folder_checks import check_false_verdicts, check_order
from benchmarker.comply.memory_check import check_memory
from benchmarker.comply.planted_delay import check_planted_delay, check_power
from benchmarker.comply.run_checks import CHECKS, OPENED
from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.core.formatting import MISSING
from benchmarker.core.tables import Block, Column, Sheet, bullets
from benchmarker.execution.jobs import job_path, saved_jobs
from benchmarker.hardware.device import find_device
from benchmarker.hardware.monitor import BUSY_CORES, load_per_core
from benchmarker.hardware.read_environment import environment
from benchmarker.schema.comply_file import COMPLY_FILE, ComplyFile, Finding, judged, not_applicable, read_findings
from benchmarker.schema.job import Job
from benchmarker.schema.record import RunRecord
from benchmarker.schema.record_io import check_writable, collect, write_json
from benchmarker.workloads.generation.spec import GenerationJob

LIMIT_S = 300
"""Longest time of a variant's checks, loading included."""


def comply(
    folder: Path, variants: Sequence[str], report: Callable[[str], None], *, output: Path | None = None
) -> ComplyFile:
    """Run all checks of a sweep's folder, and write comply.json after each variant.

    Args:
        output: Folder for comply.json. By default that of the sweep, or none if this machine did not make its records.
        variants: Names of the variants whose models are loaded and checked; all if empty. Earlier findings of the other
            variants are kept.
        report: Prints a progress line; called before each step and after each check.
    """
    jobs = saved_jobs(folder)
    names = [job.variant.name for job in jobs]
    for name in variants:
        if name not in names:
            raise SpecError(f"comply: no saved job of '{name}' in {folder}{did_you_mean(name, names)}")
    collected = collect([folder])
    results = results_of_records(collected.records, sweep_baseline=collected.baseline)
    device = find_device(jobs[0].device if jobs else "auto")
    device_name = environment(device).device.name
    foreign = _why_foreign(jobs, collected.records, device_name)
    output = output or (None if foreign else folder)
    write = partial(write_json, path=output / COMPLY_FILE) if output else lambda file: None
    if output:
        check_writable(output)
    else:
        report(f"note: comply.json is not written, because {foreign}; --output FOLDER writes it")
    if (load := load_per_core()) > BUSY_CORES:
        report(f"note: other programs use this machine ({load:.1f} per core): checks of times fail on a busy one")
    report("this machine: a planted delay and simulated sweeps")
    findings = [*check_planted_delay(device), check_memory(device), check_power()]
    findings += [check_order(folder, collected.records), *check_false_verdicts(results)]
    is_generation = isinstance(next(iter(jobs), None), GenerationJob)
    reason = foreign or ("" if is_generation else f"a check of generated tokens, not of {jobs[0].workload}")
    if reason:
        findings += [not_applicable(check, reason) for check in CHECKS]
    file = ComplyFile(benchmarker=__version__, device=device_name, findings=tuple(findings))
    chosen = variants or names
    file = file.with_findings(_kept(output, file, [name for name in names if name not in chosen]))
    for name in () if reason else chosen:
        report(f"{name}: opening it again")
        findings, paths = [], [path for path, record in collected.files if record.variant.name == name]
        for finding in _in_process(job_path(folder, name), paths, name):
            report(f"  {finding.check}: {finding.outcome}")
            findings.append(finding)
        file = file.with_findings(findings)
        write(file)
    write(file)
    return file


def _why_foreign(jobs: Sequence[Job], records: Sequence[RunRecord], device_name: str) -> str:
    """Return the reason if the records are not of a sweep on this machine (those in results/reference), else ""."""
    if not jobs:
        return "the folder has no job-NAME.json, which a sweep writes"
    names = sorted({record.environment.device.name for record in records})
    return "" if device_name in names else f"the records are of {', '.join(names)}, and this device is {device_name}"


def _kept(folder: Path | None, file: ComplyFile, names: Sequence[str]) -> list[Finding]:
    """Return these variants' earlier findings, if they are from the device and version of `file`."""
    try:
        earlier = read_findings(folder) if folder else file
    except (OSError, ValidationError):
        return []
    is_same = (earlier.device, earlier.benchmarker) == (file.device, file.benchmarker)
    of_variant = (*CHECKS, OPENED)
    return [each for each in earlier.findings if is_same and each.variant in names and each.check in of_variant]


def _in_process(job: Path, records: Iterable[Path], variant: str) -> Iterator[Finding]:
    """Yield a variant's findings, from `check_variant` in a new process."""
    command = [sys.executable, "-m", "benchmarker.comply.run_checks", str(job), *map(str, records)]
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        began, timer = time.monotonic(), threading.Timer(LIMIT_S, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            yield from map(Finding.model_validate_json, process.stdout)
            code = process.wait()
        finally:
            timer.cancel()
            process.kill()
            process.wait()
        if code:
            errors.seek(0)
            reason = f"its process ended with {code}: {(errors.read().strip().splitlines() or ['no message'])[-1]}"
            if time.monotonic() - began >= LIMIT_S:
                reason = f"did not end within {LIMIT_S} s"
            yield judged(OPENED, reason, holds=False, variant=variant)


def answer_line(file: ComplyFile) -> str:
    passed, failed = file.of("passed"), file.of("failed")
    counts = {name: len(file.of(name)) for name in ("disturbed", "not applicable")}
    end = "".join(f"; {count} {name}" for name, count in counts.items() if count) + "."
    if not failed:
        return f"All {len(passed)} checks passed on {file.device}{end}"
    names = ", ".join(dict.fromkeys(finding.title for finding in failed))
    return f"{len(failed)} of {len(passed + failed)} checks failed on {file.device}: {names}{end}"


def comply_blocks(file: ComplyFile) -> list[Block]:
    columns: tuple[Column[Finding], ...] = (
        Column("check", lambda finding: finding.check, "left"),
        Column("variant", lambda finding: finding.variant or MISSING, "left"),
        Column("result", lambda finding: finding.outcome, "left"),
    )
    return [
        answer_line(file),
        Sheet("", columns, file.findings),
        bullets(f"{finding.title}: {finding.text}" for finding in file.findings),
    ]
