"""`benchmarker comply`: check the measurements of a sweep on this machine, and write comply.json to its folder."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarker import __version__
from benchmarker.comparison.results import results_of_records
from benchmarker.comply.folder_checks import check_false_verdicts, check_order
from benchmarker.comply.machine_checks import check_memory, check_planted_delay, check_power
from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.core.formatting import MISSING
from benchmarker.core.tables import Block, Column, Sheet, bullets
from benchmarker.execution.jobs import job_path, saved_jobs
from benchmarker.hardware.device import find_device
from benchmarker.hardware.read_environment import environment
from benchmarker.schema.comply_file import ComplyFile, Finding, judged, write_findings
from benchmarker.schema.record_io import collect

LIMIT_S = 600


def comply(folder: Path, variants: Sequence[str], report: Callable[[str], None]) -> ComplyFile:
    """Run all checks of a sweep's folder, and write comply.json.

    Args:
        variants: Names of the variants whose models are loaded and checked; all if empty.
        report: Prints a progress line; called before each step.
    """
    names = [job.variant.name for job in saved_jobs(folder)]
    for name in variants:
        if name not in names:
            raise SpecError(f"comply: no saved job of '{name}' in {folder}{did_you_mean(name, names)}")
    collected = collect([folder])
    device = find_device("auto")
    report("this machine: a planted delay and simulated sweeps")
    findings = [*check_planted_delay(device), check_memory(device), check_power(), check_order(folder)]
    findings += check_false_verdicts(results_of_records(collected.records, sweep_baseline=collected.baseline))
    by_variant: dict[str, list[Path]] = defaultdict(list)
    for path, record in collected.files:
        by_variant[record.variant.name].append(path)
    for name in variants or names:
        report(f"{name}: opening it again")
        findings += _in_process(job_path(folder, name), by_variant[name], name)
    file = ComplyFile(benchmarker=__version__, device=environment(device).device.name, findings=tuple(findings))
    write_findings(folder, file)
    return file


def _in_process(job: Path, records: Iterable[Path], variant: str) -> list[Finding]:
    """Return a variant's findings, from `check_variant` in a new process."""
    command = [sys.executable, "-m", "benchmarker.comply.run_checks", str(job), *map(str, records)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return [judged("opened", f"did not end within {LIMIT_S} s", holds=False, variant=variant)]
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [judged("opened", f"its process ended with {done.returncode}: {last}", holds=False, variant=variant)]
    return [Finding.model_validate(finding) for finding in json.loads(done.stdout.splitlines()[-1])]


def answer_line(file: ComplyFile) -> str:
    passed, failed, skipped = file.of("passed"), file.of("failed"), file.of("not applicable")
    end = f"; {len(skipped)} not applicable." if skipped else "."
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
