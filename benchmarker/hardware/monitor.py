"""Watching GPUs while something is measured on them: clock, temperature, power, and what holds the clocks down.

Sampled ten times a second through the driver, from another process than the one that is measured: a call inside it
would be part of what is timed. A GPU that throttles makes its variant look slow, and says so here.

Neither NVML nor amdsmi is required; without an answer there is no monitor.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarker.hardware.conditions import conditions_of, together
from benchmarker.hardware.find_gpu import recorded_gpu
from benchmarker.hardware.gpu import Gpu, GpuState
from benchmarker.schema.environment import Conditions, Environment

PERIOD_S = 0.1
CAPACITY = 10 * 3600 * 2
"""States of one GPU: two hours of them."""
BESIDE_S = 2 * PERIOD_S
"""A cell that is shorter than the time between two readings has a reading at this distance."""

COOL_DOWN_S = 120.0
COOL_STEP_S = 1.0
COOL_WITHIN_C = 5.0


class Gauge:
    """The states of one GPU, as far as they were read."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._full_clock_mhz = gpu.full_clock_mhz()
        self._states: deque[GpuState] = deque(maxlen=CAPACITY)
        self._first_c: float | None = None
        self.failure: Exception | None = None
        """What a reading ended with; nothing is read after it."""

    def read(self) -> None:
        """Read the GPU once more and keep its state."""
        state = self._state()
        if state is None:
            return
        if self._first_c is None:
            self._first_c = state.temperature_c
        self._states.append(state)

    def between(self, start_s: float, end_s: float) -> Conditions | None:
        """The GPU from one Unix time to another; None if it was never read meanwhile."""
        return conditions_of(
            [state for state in list(self._states) if start_s <= state.time_s <= end_s],
            full_clock_mhz=self._full_clock_mhz,
        )

    def is_hot(self) -> bool:
        """Whether the GPU is more than 5 degrees warmer than when it was first read."""
        if self._first_c is None:
            return False
        state = self._state()
        return bool(state and state.temperature_c is not None and state.temperature_c > self._first_c + COOL_WITHIN_C)

    def _state(self) -> GpuState | None:
        """None once the GPU could not be read: `failure` says why, and what is measured goes on."""
        if self.failure is None:
            try:
                return self._gpu.state()
            except Exception as error:  # noqa: BLE001
                self.failure = error
        return None


class Monitor:
    """Readings of one or several GPUs of this host, taken in the background."""

    def __init__(self, *gpus: Gpu) -> None:
        self._gauges = [Gauge(gpu) for gpu in gpus]
        self._stop = threading.Event()

    @property
    def problem(self) -> str | None:
        """Why a GPU is not read any more; None while all is well."""
        failure = next((gauge.failure for gauge in self._gauges if gauge.failure), None)
        if failure is None:
            return None
        what = f"{type(failure).__name__}: {failure}"
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
        """The GPUs together from one Unix time to another; None if one of them was never read meanwhile.

        A time between two readings has both of them.
        """
        each = self.each_between(start_s, end_s)
        watched = [conditions for conditions in each if conditions]
        return together(watched) if watched and len(watched) == len(each) else None

    def each_between(self, start_s: float, end_s: float) -> tuple[Conditions | None, ...]:
        """As `between`, for each GPU by itself."""
        return tuple(
            gauge.between(start_s, end_s) or gauge.between(start_s - BESIDE_S, end_s + BESIDE_S)
            for gauge in self._gauges
        )

    def cool_down(self, *, limit_s: float = COOL_DOWN_S, stopped: Callable[[], bool] = lambda: False) -> None:
        """Wait until no GPU is more than 5 degrees warmer than when it was first read, or `stopped` is true."""
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s and not stopped() and any(gauge.is_hot() for gauge in self._gauges):
            time.sleep(COOL_STEP_S)

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_S):
            for gauge in self._gauges:
                gauge.read()


def find_monitor(environment: Environment) -> Monitor | None:
    """A monitor of the device; None on CPU, and where no library answers."""
    gpu = recorded_gpu(environment.device)
    return Monitor(gpu) if gpu else None
