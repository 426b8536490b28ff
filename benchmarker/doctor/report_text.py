"""The doctor's report: markdown that can be read in a terminal and pasted into an issue."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarker import __version__
from benchmarker.core.formatting import MISSING, decimal, gib
from benchmarker.core.tables import Block, Column, Sheet, Text, bold, bullets, plain_line
from benchmarker.doctor.findings import Finding
from benchmarker.doctor.instruments import Reading
from benchmarker.doctor.machine import Machine
from benchmarker.workloads.generation.doctor import Outcome

MARKS = {"no": "✗", "note": "!", "ok": "✓"}


def machine_words(machine: Machine) -> str:
    """What it is."""
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
        f"processor: {plain_line(around.cpu or MISSING)}, {around.cores} threads are ours, {gib(around.memory_bytes)}",
        f"torch: built for {built}{runtime}",
        f"packages: {plain_line(packages, longest=400)}",
        *(f"{name}={plain_line(value)}" for name, value in around.variables.items()),
    ]
    return bullets(lines)


def finding_words(all_findings: Sequence[Finding]) -> str:
    """One line each, and what to do under it."""
    lines = []
    for finding in all_findings:
        lines.append(f"- {MARKS[finding.level]} {plain_line(finding.what, longest=300)}")
        if finding.do:
            lines.append(f"  - do: {plain_line(finding.do, longest=300)}")
    return "\n".join(lines)


def outcome_words(outcomes: Sequence[Outcome], *, tried: bool) -> list[Block]:
    """A row a variant, a column a way; the reasons below, each once with all that share it."""
    ways = list(dict.fromkeys(outcome.way for outcome in outcomes))
    by_place = {(outcome.variant, outcome.way): outcome for outcome in outcomes}
    yes = "runs" if tried else "nothing against it"

    def text_of(way: str) -> Column[str]:
        return Column(way, lambda variant: yes if by_place[variant, way].reason is None else "no", "left")

    columns = [Column[str]("variant", str, "left"), *map(text_of, ways)]
    variants = list(dict.fromkeys(outcome.variant for outcome in outcomes))
    reasons: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.reason:
            reasons.setdefault(outcome.reason, []).append(f"{outcome.variant} {outcome.way}")
    lines = [f"- {', '.join(names)}: {plain_line(reason, longest=300)}" for reason, names in reasons.items()]
    return [Sheet("", columns, variants), "\n".join(lines)]


def reading_words(readings: Sequence[Reading]) -> list[Block]:
    """Each instrument with what it showed of what was known."""
    verdicts = {True: "right", False: Text(bold("off")), None: "cannot tell"}
    columns = [
        Column[Reading]("instrument", lambda reading: reading.instrument, "left"),
        Column[Reading]("known", lambda reading: _value(reading.expected, reading.unit)),
        Column[Reading]("shown", lambda reading: _value(reading.measured, reading.unit)),
        Column[Reading]("", lambda reading: verdicts[reading.is_right], "left"),
        Column[Reading]("of", lambda reading: plain_line(reading.remark), "left"),
    ]
    return [Sheet("", columns, readings)]


def _value(number: float | None, unit: str) -> str:
    return MISSING if number is None else f"{decimal(number)} {unit}"
