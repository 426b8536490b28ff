"""How the GPUs were while a cell was measured: many readings in one value, and whether the cell is valid under it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from benchmarker.core.errors import ErrorKind
from benchmarker.hardware.gpu import GpuState
from benchmarker.schema.environment import Conditions

HELD_BACK = frozenset({"hardware_slowdown", "thermal", "hardware_thermal", "power_brake", "reliability"})
"""Reasons that make a measurement invalid. A power cap does not: it is how the board is built."""
LOW_CLOCK = 0.75
"""Below this part of the default clock a measurement is invalid, as NVBench has it."""


def conditions_of(states: Iterable[GpuState], *, full_clock_mhz: int | None) -> Conditions | None:
    """Many states of one GPU in one value; None where there are none."""
    states = list(states)
    if not states:
        return None
    clocks = [state.clock_mhz for state in states if state.clock_mhz is not None]
    temperatures = [state.temperature_c for state in states if state.temperature_c is not None]
    powers = [state.power_w for state in states if state.power_w is not None]
    return Conditions(
        samples=len(states),
        sm_clock_mhz=round(statistics.median(clocks)) if clocks else None,
        sm_clock_full_mhz=full_clock_mhz,
        temperature_c=float(max(temperatures)) if temperatures else None,
        power_w=statistics.fmean(powers) if powers else None,
        throttled_by=_throttled_by(states),
        processes=max((state.processes for state in states if state.processes is not None), default=None),
    )


def _throttled_by(states: Sequence[GpuState]) -> tuple[str, ...] | None:
    """All that held the clocks down. None where no state says, and no counted time moved."""
    reasons = [state.throttled_by for state in states if state.throttled_by is not None]
    held = _held_between(states)
    return tuple(sorted(held.union(*reasons))) if reasons or held else None


def _held_between(states: Sequence[GpuState]) -> frozenset[str]:
    """What held the clocks down at any time from the first state to the last: a reading each 0.1 s misses some."""
    first, last = states[0].held_ns, states[-1].held_ns
    return frozenset(reason for reason, held_ns in last.items() if held_ns > first.get(reason, held_ns))


def together(each: Sequence[Conditions]) -> Conditions:
    """Several GPUs that worked on one cell: the worst of them, and the power of all.

    The clock is that of the GPU which is furthest below its own full clock. A value that one GPU does not tell is
    None for all, except reasons for throttling and processes: one GPU is enough to make a cell invalid.
    """
    if len(each) == 1:
        return each[0]
    slowest = min(each, key=_clock_share)
    temperatures = [conditions.temperature_c for conditions in each if conditions.temperature_c is not None]
    powers = [conditions.power_w for conditions in each if conditions.power_w is not None]
    reasons = [conditions.throttled_by for conditions in each if conditions.throttled_by is not None]
    return Conditions(
        samples=min(conditions.samples for conditions in each),
        sm_clock_mhz=slowest.sm_clock_mhz,
        sm_clock_full_mhz=slowest.sm_clock_full_mhz,
        temperature_c=max(temperatures) if len(temperatures) == len(each) else None,
        power_w=sum(powers) if len(powers) == len(each) else None,
        throttled_by=tuple(sorted(set().union(*reasons))) if reasons else None,
        processes=max((conditions.processes for conditions in each if conditions.processes is not None), default=None),
    )


def _clock_share(conditions: Conditions) -> float:
    """The clock as a part of the full clock; 1 where the driver does not tell both."""
    return (
        conditions.sm_clock_mhz / conditions.sm_clock_full_mhz
        if conditions.sm_clock_mhz and conditions.sm_clock_full_mhz
        else 1.0
    )


def why_invalid(
    conditions: Conditions, *, own_processes: int = 1, allow_shared: bool = False
) -> tuple[ErrorKind, str] | None:
    """Why a measurement under these conditions says nothing of its variant, as kind and sentence; None if it does.

    Args:
        own_processes: How many processes on the board may be the run's own.
        allow_shared: Accept that other processes compute on the board.
    """
    if is_shared(conditions, own_processes=own_processes) and not allow_shared:
        ours = f", {own_processes} of them the run's own" if own_processes > 1 else ""
        return (
            "shared_device",
            f"{conditions.processes} processes were on the device{ours}; end the others, or accept them with "
            "--allow-shared",
        )
    held = [reason for reason in conditions.throttled_by or () if reason in HELD_BACK]
    if held:
        return "throttled", f"the board was throttled meanwhile ({', '.join(held).replace('_', ' ')})"
    if _clock_share(conditions) < LOW_CLOCK:
        return "throttled", f"the clock was {conditions.sm_clock_mhz} MHz of {conditions.sm_clock_full_mhz}"
    return None


def is_shared(conditions: Conditions, *, own_processes: int = 1) -> bool:
    """Whether others computed on the board besides the processes that were measured."""
    return conditions.processes is not None and conditions.processes > own_processes
