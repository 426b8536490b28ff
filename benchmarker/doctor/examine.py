"""Examination of a machine: its properties, the obstacles, the variants that run, and the instruments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarker.core.console import Terminal
from benchmarker.core.errors import DeviceError, SpecError
from benchmarker.core.tables import bold, bullets
from benchmarker.doctor.findings import findings
from benchmarker.doctor.instruments import readings
from benchmarker.doctor.machine import look
from benchmarker.doctor.report_text import finding_lines, machine_lines, outcome_table, reading_table
from benchmarker.hardware.device import Device, find_device
from benchmarker.schema.registry import DEFAULT_WORKLOAD, workload_of
from benchmarker.workloads.generation import engine_trials as variants
from benchmarker.workloads.generation.engine_trials import FIRST_ENGINE, Outcome, trial

TRIAL_LIMIT_S = 600.0
"""Limit for one variant. GPTQ builds an extension at its first use."""
RUN = (sys.executable, "-m", "benchmarker.run")


def examine(device_name: str, terminal: Terminal, *, quick: bool, workload: str = DEFAULT_WORKLOAD) -> bool:
    """Print the report; return True if every variant runs in some engine and every instrument is right.

    If the device does not exist, the report begins with this error and describes the processor.

    Raises:
        SpecError: There is no such workload, or its variants cannot be examined.
    """
    workload_of(workload)
    if workload != DEFAULT_WORKLOAD:
        raise SpecError(f"doctor: cannot examine the variants of {workload}; `benchmarker run` tries one")
    problem = ""
    try:
        device = find_device(device_name)
    except DeviceError as error:
        device, problem = find_device("cpu"), str(error)
    machine = look(device)
    terminal.table([machine_lines(machine)])
    if problem:
        terminal.table([f"{bold(problem)} The following describes the processor."])
    terminal.table([finding_lines(findings(machine))])
    outcomes = list(variants.look(machine, device))
    if not quick:
        outcomes = list(try_variants(outcomes, device, say=terminal.line))
    terminal.table(outcome_table(outcomes, tried=not quick))
    if external := list(variants.external_lines(device)):
        terminal.table([bullets(external)])
    is_well = not problem and all_run(outcomes)
    if quick:
        return is_well
    instruments = list(readings(device))
    terminal.table(reading_table(instruments))
    return is_well and all(reading.is_right is not False for reading in instruments)


def all_run(outcomes: Sequence[Outcome]) -> bool:
    """Return True if every variant with code for this device runs in some engine."""
    wanted = {outcome.variant for outcome in outcomes if not outcome.is_for_others}
    return wanted == {outcome.variant for outcome in outcomes if outcome.reason is None}


def try_variants(
    expected: Sequence[Outcome], device: Device, *, say: Callable[[str], None], command: Sequence[str] = RUN
) -> Iterator[Outcome]:
    """Run every variant without a known obstacle, each in a process of its own.

    A variant that fails in the first engine is tried in no other, because the others build on it.
    """
    failed: dict[str, str] = {}
    with trial(device) as (arguments_of, folder):
        for outcome in expected:
            reason = outcome.reason or failed.get(outcome.variant)
            if reason:
                yield replace(outcome, reason=reason)
                continue
            say(f"trying {outcome.variant}, {outcome.way}")
            reason = _why_failed([*command, *arguments_of(outcome)], folder)
            if reason and outcome.way == FIRST_ENGINE:
                failed[outcome.variant] = reason
            yield Outcome(outcome.variant, outcome.way, reason)


def _why_failed(command: list[str], folder: Path) -> str | None:
    """Run a command; return its error, or None if it succeeded."""
    environment = {**os.environ, "BENCHMARKER_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    try:
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TRIAL_LIMIT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {TRIAL_LIMIT_S:.0f} s"
    if process.returncode == 0:
        return None
    lines = [line.strip() for line in (process.stderr + "\n" + process.stdout).splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("error: ")), None) or _cell_reason(folder)
    if reason:
        return reason.removeprefix("error: ")
    return lines[-1][:300] if lines else f"exit {process.returncode}"


def _cell_reason(folder: Path) -> str | None:
    """Return the reason of the failed cell in the newest record."""
    records = sorted((folder / "records").glob("*.json"), key=lambda path: path.stat().st_mtime)
    if not records:
        return None
    cells = json.loads(records[-1].read_text())["cells"]
    return next((str(cell["reason"]) for cell in cells if cell["status"] != "ok"), None)
