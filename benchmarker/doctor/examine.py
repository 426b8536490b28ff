"""Report on a machine: its properties, obstacles to good numbers, the variants that run, and its instruments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarker import __version__
from benchmarker.core.console import Terminal
from benchmarker.core.errors import DeviceError, SpecError
from benchmarker.core.formatting import MISSING, decimal, gib
from benchmarker.core.tables import Block, Column, Sheet, Text, bold, bullets, plain_line
from benchmarker.doctor.findings import Finding, Machine, findings, look
from benchmarker.doctor.instruments import Reading, readings
from benchmarker.engines.external.environments import engine_statuses
from benchmarker.hardware.device import Device, find_device
from benchmarker.quantization.checkpoint_table import local_format_sheet
from benchmarker.schema.registry import DEFAULT_WORKLOAD, workload_of
from benchmarker.workloads.generation import engine_trials as variants
from benchmarker.workloads.generation.engine_trials import FIRST_ENGINE, Outcome, run_arguments, two_layers

TRIAL_LIMIT_S = 600.0  # Time limit of one variant's trial. GPTQ builds an extension at its first use.
MARKS = {"no": "✗", "note": "!", "ok": "✓"}
RUN = (sys.executable, "-m", "benchmarker.run")


def examine(device_name: str, terminal: Terminal, *, quick: bool, workload: str = DEFAULT_WORKLOAD) -> bool:
    """Print the report; return True if every variant runs in some engine and every instrument is right.

    If the device does not exist, the report gives the error and describes the processor. Raises SpecError.
    """
    workload_of(workload)
    if workload != DEFAULT_WORKLOAD:
        how = f"`benchmarker run {workload} --help` shows how to try a variant"
        raise SpecError(f"doctor: examines {DEFAULT_WORKLOAD} only; {how}")
    problem = ""
    try:
        device = find_device(device_name)
    except DeviceError as error:
        device, problem = find_device("cpu"), str(error)
    machine = look(device)
    terminal.show([machine_lines(machine)])
    if problem:
        terminal.show([f"{bold(problem)} The following describes the processor."])
    terminal.show([finding_lines(findings(machine))])
    outcomes = list(variants.look(machine, device))
    if not quick:
        outcomes = list(try_variants(outcomes, device, print_line=terminal.line))
    terminal.show(outcome_table(outcomes, tried=not quick))
    terminal.show([local_format_sheet()])
    terminal.show([bullets([status.line for status in engine_statuses(device.kind)])])
    is_well = not problem and all_run(outcomes)
    if quick:
        return is_well
    instruments = list(readings(device))
    terminal.show(reading_table(instruments))
    return is_well and all(reading.is_right is not False for reading in instruments)


def all_run(outcomes: Sequence[Outcome]) -> bool:
    """Return True if every variant with code for this device runs in some engine."""
    wanted = {outcome.variant for outcome in outcomes if not outcome.is_for_others}
    return wanted == {outcome.variant for outcome in outcomes if outcome.reason is None}


def try_variants(
    expected: Sequence[Outcome], device: Device, *, print_line: Callable[[str], None], command: Sequence[str] = RUN
) -> Iterator[Outcome]:
    """Run each variant in its own process. A variant that fails in the first engine is not tried in other engines."""
    failed: dict[str, str] = {}
    with two_layers() as (model, folder):
        for outcome in expected:
            if reason := outcome.reason or failed.get(outcome.variant):
                yield replace(outcome, reason=reason)
                continue
            print_line(f"trying {outcome.variant}, {outcome.way}")
            reason = _why_failed([*command, *run_arguments(outcome, device, model=model, folder=folder)], folder)
            if reason and outcome.way == FIRST_ENGINE:
                failed[outcome.variant] = reason
            yield Outcome(outcome.variant, outcome.way, reason)


def _why_failed(command: list[str], folder: Path) -> str | None:
    environment = {**os.environ, "BENCHMARKER_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    try:
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TRIAL_LIMIT_S, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {TRIAL_LIMIT_S:.0f} s"
    if process.returncode == 0:
        return None
    lines = [line.strip() for line in (process.stderr + "\n" + process.stdout).splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    records = sorted((folder / "records").glob("*.json"), key=lambda path: path.stat().st_mtime)
    if not errors and records:
        cells = json.loads(records[-1].read_text())["cells"]
        errors = [str(cell["reason"]).removeprefix("error: ") for cell in cells if cell["status"] != "ok"]
    return errors[0] if errors else lines[-1][:300] if lines else f"exit {process.returncode}"


def machine_lines(machine: Machine) -> str:
    around, device = machine.environment, machine.environment.device
    parts = [
        gib(device.memory_bytes) if device.memory_bytes else "",
        f"capability {device.capability}" if device.capability else "",
        f"driver {device.driver}" if device.driver else "",
    ]
    summary = f" ({', '.join(filter(None, parts))})" if any(parts) else ""
    packages = ", ".join(f"{name} {version}" for name, version in around.packages.items())
    runtime = f" {machine.torch_runtime}" if machine.torch_runtime else ""
    built = {"cuda": "CUDA", "rocm": "ROCm", "cpu": "CPUs"}[machine.torch_for]
    lines = [
        f"benchmarker {__version__}, Python {around.python}, {around.system}",
        f"device: {plain_line(device.name)}{summary}",
        f"processor: {plain_line(around.cpu or MISSING)}, {around.cores} threads available, {gib(around.memory_bytes)}",
        f"torch: built for {built}{runtime}",
        f"packages: {plain_line(packages, longest=400)}",
        *(f"{name}={plain_line(value)}" for name, value in around.variables.items()),
    ]
    return bullets(lines)


def finding_lines(conclusions: Sequence[Finding]) -> str:
    lines = []
    for finding in conclusions:
        lines.append(f"- {MARKS[finding.level]} {plain_line(finding.what, longest=300)}")
        if finding.do:
            lines.append(f"  - do: {plain_line(finding.do, longest=300)}")
    return "\n".join(lines)


def outcome_table(outcomes: Sequence[Outcome], *, tried: bool) -> list[Block]:
    engines = list(dict.fromkeys(outcome.way for outcome in outcomes))
    by_cell = {(outcome.variant, outcome.way): outcome for outcome in outcomes}
    yes = "runs" if tried else "no obstacle"

    def text_of(engine: str) -> Column[str]:
        return Column(engine, lambda variant: yes if by_cell[variant, engine].reason is None else "no", "left")

    columns = [Column[str]("variant", str, "left"), *map(text_of, engines)]
    variants = list(dict.fromkeys(outcome.variant for outcome in outcomes))
    reasons: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.reason:
            reasons.setdefault(outcome.reason, []).append(f"{outcome.variant} {outcome.way}")
    lines = [f"- {', '.join(names)}: {plain_line(reason, longest=300)}" for reason, names in reasons.items()]
    return [Sheet("", columns, variants), "\n".join(lines)]


def reading_table(readings: Sequence[Reading]) -> list[Block]:
    verdicts = {True: "right", False: Text(bold("wrong")), None: "unknown"}
    columns = [
        Column[Reading]("instrument", lambda reading: reading.instrument, "left"),
        Column[Reading]("expected", lambda reading: _value(reading.expected, reading.unit)),
        Column[Reading]("measured", lambda reading: _value(reading.measured, reading.unit)),
        Column[Reading]("", lambda reading: verdicts[reading.is_right], "left"),
        Column[Reading]("reference", lambda reading: plain_line(reading.remark), "left"),
    ]
    return [Sheet("", columns, readings)]


def _value(number: float | None, unit: str) -> str:
    return MISSING if number is None else f"{decimal(number)} {unit}"
