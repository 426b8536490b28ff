"""How the board is while something is measured on it: clock, temperature, power, and what holds it back.

Sampled ten times a second through the driver, from another process than the one that is measured: a call inside it
would be part of what is timed. A board that throttles makes its variant look slow, and says so here.

Neither NVML nor amdsmi is required; without an answer there is no monitor.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from benchmarker.hardware.gauge import Gauge, Reading, find_gauge
from benchmarker.schema.record import Conditions, Environment

PERIOD_S = 0.1
KEPT = 10 * 3600 * 2
"""Samples: two hours of them."""
BESIDE_S = 2 * PERIOD_S
"""A cell that is shorter than the time between two readings has one at this distance."""

COOL_DOWN_S = 120.0
COOL_STEP_S = 1.0
COOL_WITHIN_C = 5.0

HELD_BACK = frozenset({"hardware_slowdown", "thermal", "hardware_thermal", "power_brake", "reliability"})
"""What makes a measurement invalid. A power cap does not: it is how the board is built."""
LOW_CLOCK = 0.75
"""Below this part of the default clock a measurement is invalid, as NVBench has it."""


class Monitor:
    """Readings of one board, taken in the background."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._readings: deque[Reading] = deque(maxlen=KEPT)
        self._first_c: float | None = None
        self._failure: Exception | None = None
        self._stop = threading.Event()

    @property
    def problem(self) -> str | None:
        """Why nothing is read any more; None while all is well."""
        if self._failure is None:
            return None
        what = f"{type(self._failure).__name__}: {self._failure}"
        return f"the board cannot be read ({what}); clocks and throttling are not watched from here on"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Take readings meanwhile."""
        self._stop.clear()
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def between(self, start_s: float, end_s: float) -> Conditions | None:
        """How the board was from one Unix time to another; None if it was never read meanwhile.

        Between two readings, they count.
        """
        taken = self._taken(start_s, end_s) or self._taken(start_s - BESIDE_S, end_s + BESIDE_S)
        return conditions(taken, full_clock_mhz=self._gauge.full_clock_mhz)

    def _taken(self, start_s: float, end_s: float) -> list[Reading]:
        return [one for one in list(self._readings) if start_s <= one.at_s <= end_s]

    def cool_down(self, *, limit_s: float = COOL_DOWN_S) -> None:
        """Wait until the board is no more than 5 degrees warmer than when it was first read."""
        until = time.monotonic() + limit_s
        while self._first_c is not None and time.monotonic() < until:
            now = self._read()
            if now is None or now.temperature_c is None or now.temperature_c <= self._first_c + COOL_WITHIN_C:
                return
            time.sleep(COOL_STEP_S)

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_S):
            reading = self._read()
            if reading is None:
                return
            if self._first_c is None:
                self._first_c = reading.temperature_c
            self._readings.append(reading)

    def _read(self) -> Reading | None:
        """None once the board could not be read: `problem` says why, and what is measured goes on."""
        if self._failure is None:
            try:
                return self._gauge.read()
            except Exception as error:  # noqa: BLE001
                self._failure = error
        return None


def conditions(readings: Iterable[Reading], *, full_clock_mhz: int | None) -> Conditions | None:
    """Many readings in one; None of none."""
    taken = list(readings)
    if not taken:
        return None
    clocks = [one.sm_clock_mhz for one in taken if one.sm_clock_mhz is not None]
    temperatures = [one.temperature_c for one in taken if one.temperature_c is not None]
    powers = [one.power_w for one in taken if one.power_w is not None]
    return Conditions(
        samples=len(taken),
        sm_clock_mhz=round(statistics.median(clocks)) if clocks else None,
        sm_clock_full_mhz=full_clock_mhz,
        temperature_c=float(max(temperatures)) if temperatures else None,
        power_w=statistics.fmean(powers) if powers else None,
        throttled_by=_throttled_by(taken),
        processes=max((one.processes for one in taken if one.processes is not None), default=None),
    )


def _throttled_by(taken: Sequence[Reading]) -> tuple[str, ...] | None:
    """All that held the clocks down. None where no reading says, and nothing was seen to."""
    told = [one.throttled_by for one in taken if one.throttled_by is not None]
    held = _held_between(taken)
    return tuple(sorted(held.union(*told))) if told or held else None


def _held_between(taken: Sequence[Reading]) -> frozenset[str]:
    """What held the clocks down at any time from the first reading to the last: a reading each 0.1 s misses some."""
    first, last = taken[0].held_ns, taken[-1].held_ns
    return frozenset(word for word, held_ns in last.items() if held_ns > first.get(word, held_ns))


def why_invalid(seen: Conditions, *, allow_shared: bool = False) -> str | None:
    """Why a measurement under these conditions says nothing of its variant; None if it does.

    Args:
        allow_shared: Accept that other processes compute on the board.
    """
    if is_shared(seen) and not allow_shared:
        return f"{seen.processes} processes were on the device; end the others, or accept them with --allow-shared"
    held = [reason for reason in seen.throttled_by or () if reason in HELD_BACK]
    if held:
        return f"the board was throttled meanwhile ({', '.join(held).replace('_', ' ')})"
    if seen.sm_clock_mhz and seen.sm_clock_full_mhz and seen.sm_clock_mhz < LOW_CLOCK * seen.sm_clock_full_mhz:
        return f"the clock was {seen.sm_clock_mhz} MHz of {seen.sm_clock_full_mhz}"
    return None


def is_shared(seen: Conditions) -> bool:
    """Whether others computed on the board besides the one process that was measured."""
    return seen.processes is not None and seen.processes > 1


def find_monitor(environment: Environment) -> Monitor | None:
    """A monitor of the device; None on CPU, and where no library answers."""
    gauge = find_gauge(environment.device)
    return Monitor(gauge) if gauge else None
