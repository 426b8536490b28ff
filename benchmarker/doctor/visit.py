"""The whole visit, said as it goes: what the machine is, what is in the way, what runs, and whether to believe it."""

from __future__ import annotations

from benchmarker.core.console import Terminal
from benchmarker.core.errors import DeviceError, SpecError
from benchmarker.core.tables import bold, bullets
from benchmarker.doctor.findings import findings
from benchmarker.doctor.instruments import readings
from benchmarker.doctor.machine import look
from benchmarker.doctor.report_text import finding_words, machine_words, outcome_words, reading_words
from benchmarker.doctor.variants import try_all
from benchmarker.hardware.device import find_device
from benchmarker.schema.registry import DEFAULT_WORKLOAD, workload_of
from benchmarker.workloads.generation import doctor as variants
from benchmarker.workloads.generation.doctor import Outcome


def visit(device_name: str, terminal: Terminal, *, quick: bool, workload: str = DEFAULT_WORKLOAD) -> bool:
    """Print the report; whether every variant runs in some way and every instrument is right.

    A device that is not there is the first thing to say, and the rest is said of the processor.
    """
    workload_of(workload)
    if workload != DEFAULT_WORKLOAD:
        raise SpecError(f"doctor: {workload} does not say which of its variants run here; `benchmarker run` tries one")
    trouble = ""
    try:
        device = find_device(device_name)
    except DeviceError as error:
        device, trouble = find_device("cpu"), str(error)
    machine = look(device)
    conclusions = findings(machine)
    terminal.table([machine_words(machine)])
    if trouble:
        terminal.table([f"{bold(trouble)} What follows is said of the processor."])
    terminal.table([finding_words(conclusions)])
    outcomes = list(variants.look(machine, device))
    if not quick:
        outcomes = list(try_all(outcomes, device, say=terminal.line))
    terminal.table(outcome_words(outcomes, tried=not quick))
    if beside := list(variants.external_lines(device)):
        terminal.table([bullets(beside)])
    is_well = not trouble and all_run(outcomes)
    if quick:
        return is_well
    instruments = list(readings(device))
    terminal.table(reading_words(instruments))
    return is_well and all(reading.is_right is not False for reading in instruments)


def all_run(outcomes: list[Outcome]) -> bool:
    """Whether every variant that this device has code for runs in some way."""
    wanted = {outcome.variant for outcome in outcomes if not outcome.is_for_others}
    return wanted == {outcome.variant for outcome in outcomes if outcome.reason is None}
