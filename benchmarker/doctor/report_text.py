"""Report of the doctor in markdown, for a terminal and for an issue."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarker import __version__
from benchmarker.core.formatting import MISSING, decimal, gib
from benchmarker.core.tables import Block, Column, Sheet, Text, bold, bullets, plain_line
from benchmarker.doctor.findings import Finding
from benchmarker.doctor.instruments import Reading
from benchmarker.doctor.machine import Machine
from benchmarker.workloads.generation.engine_trials import Outcome

MARKS = {"no": "✗", "note": "!", "ok": "✓"}


def machine_lines(machine: Machine) -> str:
    """Return a list of the machine's properties."""
    around = machine.environment
    device = around.device
    parts = [
        gib(device.memory_bytes) if device.memory_bytes else "",
        f"capability {device.capability}" if device.capability else "",
        f"driver {device.driver}" if device.driver else "",
    ]
    summary = ", ".join(filter(None, parts))
    packages = ", ".join(f"{name} {version}" for name, version in around.packages.items())
    runtime = f" {machine.torch_runtime}" if machine.torch_runtime else ""
    built = {"cuda": "CUDA", "rocm": "ROCm", "cpu": "CPUs"}[machine.torch_for]
    lines = [
        f"benchmarker {__version__}, Python {around.python}, {around.system}",
        f"device: {plain_line(device.name)}" + (f" ({summary})" if summary else ""),
        f"processor: {plain_line(around.cpu or MISSING)}, {around.cores} threads available, {gib(around.memory_bytes)}",
        f"torch: built for {built}{runtime}",
        f"packages: {plain_line(packages, longest=400)}",
        *(f"{name}={plain_line(value)}" for name, value in around.variables.items()),
    ]
    return bullets(lines)


def finding_lines(all_findings: Sequence[Finding]) -> str:
    """Return one line per finding, with its remedy below."""
    lines = []
    for finding in all_findings:
        lines.append(f"- {MARKS[finding.level]} {plain_line(finding.what, longest=300)}")
        if finding.do:
            lines.append(f"  - do: {plain_line(finding.do, longest=300)}")
    return "\n".join(lines)


def outcome_table(outcomes: Sequence[Outcome], *, tried: bool) -> list[Block]:
    """Return a table with a row per variant and a column per engine, and a list of the reasons."""
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
    """Return a table of the instruments with known and measured values."""
    verdicts = {True: "right", False: Text(bold("wrong")), None: "unknown"}
    columns = [
        Column[Reading]("instrument", lambda reading: reading.instrument, "left"),
        Column[Reading]("known", lambda reading: _value(reading.expected, reading.unit)),
        Column[Reading]("measured", lambda reading: _value(reading.measured, reading.unit)),
        Column[Reading]("", lambda reading: verdicts[reading.is_right], "left"),
        Column[Reading]("reference", lambda reading: plain_line(reading.remark), "left"),
    ]
    return [Sheet("", columns, readings)]


def _value(number: float | None, unit: str) -> str:
    return MISSING if number is None else f"{decimal(number)} {unit}"
