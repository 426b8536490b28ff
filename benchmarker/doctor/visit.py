"""The whole visit, said as it goes: what the machine is, what is in the way, what runs, and whether to believe it."""

from __future__ import annotations

from benchmarker.checkpoints.base import Target
from benchmarker.core.console import Terminal
from benchmarker.core.errors import DeviceError
from benchmarker.doctor.findings import findings
from benchmarker.doctor.instruments import readings
from benchmarker.doctor.machine import look
from benchmarker.doctor.text import finding_words, machine_words, outcome_words, reading_words
from benchmarker.doctor.variants import Outcome, look_at, try_all
from benchmarker.hardware.device import find_device
from benchmarker.schema.base import DType


def visit(device_name: str, terminal: Terminal, *, quick: bool) -> bool:
    """Print the report; whether every variant runs in some runtime and every instrument is right.

    A device that is not there is the first thing to say, and the rest is said of the processor.
    """
    trouble = ""
    try:
        device = find_device(device_name)
    except DeviceError as error:
        device, trouble = find_device("cpu"), str(error)
    dtype: DType = "bfloat16" if device.kind == "cpu" else "float16"
    target = Target(device.torch_name, dtype)
    machine = look(device)
    found = findings(machine)
    terminal.table(machine_words(machine))
    if trouble:
        terminal.table(f"**{trouble}** What follows is said of the processor.\n")
    terminal.table(finding_words(found))
    outcomes = list(look_at(machine, target))
    if not quick:
        outcomes = list(try_all(outcomes, target, say=terminal.line))
    terminal.table(outcome_words(outcomes, tried=not quick))
    is_well = not trouble and all_run(outcomes)
    if quick:
        return is_well
    shown = list(readings(device))
    terminal.table(reading_words(shown))
    return is_well and all(one.is_right is not False for one in shown)


def all_run(outcomes: list[Outcome]) -> bool:
    """Whether every variant that this device has code for has a runtime."""
    wanted = {outcome.quant for outcome in outcomes if not outcome.is_for_others}
    return wanted == {outcome.quant for outcome in outcomes if outcome.reason is None}
