"""State of the GPUs (clock, temperature, power, throttling) and load of the host during a measurement.

In a sweep, a process other than the measured one reads the driver ten times a second, so that no such call is timed.
Host load comes from Linux: busy time and time taken by a hypervisor (steal) of each core, and involuntary context
switches of each process. Reading these counters twice a second takes a thousandth of a core.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarker.core.errors import ErrorKind
from benchmarker.core.formatting import percent, plural
from benchmarker.hardware.gpu import Gpu, GpuState, recorded_gpu
from benchmarker.schema.record import CellBase, Conditions, Environment, Flag, HostLoad

CellKind = TypeVar("CellKind", bound=CellBase)
PERIOD_S = 0.1
CAPACITY = 10 * 3600 * 2
BESIDE_S = 2 * PERIOD_S  # If no GPU state was read during a cell, the cell uses states up to this long outside.

COOL_DOWN_S = 120.0

INVALIDATING = frozenset({"hardware_slowdown", "thermal", "hardware_thermal", "power_brake", "reliability"})
"""Throttle reasons that make a measurement invalid. A power cap does not: boards reach it in normal operation."""
LOW_CLOCK = 0.75  # Share of the default clock below which a measurement is invalid, except at the power limit.


class Monitor:
    """Recorder of the states of a GPU of this host, in a background thread."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._full_clock_mhz = gpu.full_clock_mhz()
        self._states: deque[GpuState] = deque(maxlen=CAPACITY)
        self._first_c: float | None = None
        self.problem: str | None = None
        """Reason for which the driver cannot be read any more; None while it can."""
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        self._stop.clear()

        def read_on() -> None:
            while not self._stop.wait(PERIOD_S):
                self.read()

        thread = threading.Thread(target=read_on, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def read(self) -> None:
        """Store the current state of the GPU. Does nothing if the driver cannot be read."""
        if state := self._state():
            if self._first_c is None:
                self._first_c = state.temperature_c
            self._states.append(state)

    def _state(self) -> GpuState | None:
        if self.problem is None:
            try:
                return self._gpu.state()
            except Exception as error:  # noqa: BLE001
                reason = f"the board cannot be read ({type(error).__name__}: {error})"
                self.problem = f"{reason}; clocks and throttling are not watched from here on"
        return None

    def between(self, start_s: float, end_s: float) -> Conditions | None:
        """Summarize the GPU states between two Unix times, else those within BESIDE_S of them; None if none."""
        states = list(self._states)
        inside = [state for state in states if start_s <= state.time_s <= end_s]
        near = [state for state in states if start_s - BESIDE_S <= state.time_s <= end_s + BESIDE_S]
        return conditions_of(inside or near, full_clock_mhz=self._full_clock_mhz)

    def cool_down(self, *, stopped: Callable[[], bool] = lambda: False) -> None:
        """Wait up to 120 s until the GPU is at most 5 °C warmer than at the first reading, or `stopped()` is true."""
        end_s, first_c = time.monotonic() + COOL_DOWN_S, self._first_c
        while first_c is not None and time.monotonic() < end_s and not stopped():
            state = self._state()
            if state is None or state.temperature_c is None or state.temperature_c <= first_c + 5.0:
                return
            time.sleep(1.0)


def find_monitor(environment: Environment) -> Monitor | None:
    gpu = recorded_gpu(environment.device)
    return Monitor(gpu) if gpu else None


def conditions_of(states: Sequence[GpuState], *, full_clock_mhz: int | None) -> Conditions | None:
    if not states:
        return None
    clocks = [state.clock_mhz for state in states if state.clock_mhz is not None]
    temperatures = [state.temperature_c for state in states if state.temperature_c is not None]
    powers = [state.power_w for state in states if state.power_w is not None]
    reasons = [state.throttled_by for state in states if state.throttled_by is not None]
    # States are 0.1 s apart and miss short throttling; the driver's counters do not.
    first, last = states[0].held_ns, states[-1].held_ns
    held = frozenset(reason for reason, held_ns in last.items() if held_ns > first.get(reason, held_ns))
    return Conditions(
        samples=len(states),
        sm_clock_mhz=round(statistics.median(clocks)) if clocks else None,
        sm_clock_full_mhz=full_clock_mhz,
        temperature_c=float(max(temperatures)) if temperatures else None,
        power_w=statistics.fmean(powers) if powers else None,
        throttled_by=tuple(sorted(held.union(*reasons))) if reasons or held else None,
        processes=max((state.processes for state in states if state.processes is not None), default=None),
    )


def why_invalid(
    conditions: Conditions, *, own_processes: int = 1, allow_shared: bool = False
) -> tuple[ErrorKind, str] | None:
    """Return kind and reason if a measurement under these conditions is invalid; None otherwise."""
    if is_shared(conditions, own_processes=own_processes) and not allow_shared:
        ours = f", {own_processes} of them the run's own" if own_processes > 1 else ""
        reason = f"{conditions.processes} processes were on the device{ours}"
        return "shared_device", f"{reason}; end the others, or accept them with --allow-shared"
    if held := [reason for reason in conditions.throttled_by or () if reason in INVALIDATING]:
        return "throttled", f"the board was throttled meanwhile ({', '.join(held).replace('_', ' ')})"
    clock_mhz, full_clock_mhz = conditions.sm_clock_mhz, conditions.sm_clock_full_mhz
    is_low = clock_mhz and full_clock_mhz and clock_mhz / full_clock_mhz < LOW_CLOCK
    if is_low and "power_cap" not in (conditions.throttled_by or ()):
        return "throttled", f"the clock was {clock_mhz} MHz of {full_clock_mhz}"
    return None


def is_shared(conditions: Conditions, *, own_processes: int = 1) -> bool:
    return conditions.processes is not None and conditions.processes > own_processes


def with_gpu_state(cell: CellKind, monitor: Monitor | None, *, own_processes: int, allow_shared: bool) -> CellKind:
    conditions = monitor.between(*cell.timed_at) if monitor and cell.timed_at and not cell.conditions else None
    if conditions is None:
        return cell
    flags: list[Flag] = []
    if conditions.throttled_by is None:
        flags.append("throttling_unknown")
    elif "power_cap" in conditions.throttled_by:
        flags.append("power_limited")
    if is_shared(conditions, own_processes=own_processes):
        flags.append("shared_device")
    changes: dict[str, object] = {"conditions": conditions, "flags": (*cell.flags, *flags)}
    invalid = why_invalid(conditions, own_processes=own_processes, allow_shared=allow_shared)
    if cell.status == "ok" and invalid:
        changes |= dict(zip(("status", "error_kind", "reason"), ("invalid", *invalid), strict=True))
    return cell.model_copy(update=changes)


PROC = Path("/proc")
MAXIMAL_STEAL = 0.02
MAXIMAL_OTHERS = 0.05
MAXIMAL_SWITCHES_PER_S = 10.0  # Preemptions. A process that keeps its core has one or two per second.
CROWDED = 0.25  # Share of other programs that slows even a process that keeps its core: caches and memory are shared.


@dataclass(frozen=True)
class Reading:
    time_s: float
    busy_s: float
    steal_s: float
    own_s: float
    switches: int


class HostGauge:
    def __init__(self, process: int, *, proc: Path = PROC) -> None:
        self._process, self._proc = process, proc
        self._cores = sorted(os.sched_getaffinity(0))
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._readings: deque[Reading] = deque(maxlen=2 * 3600 * 2)

    def read(self) -> None:
        """Store the current counters. Does nothing if the system has none or the process has ended."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            # Raises an error if the process has ended; its time would then count as that of other programs.
            (self._proc / str(self._process)).stat()
            own_ticks = sum(map(self._process_ticks, {os.getpid(), *self._tree(self._process)}))
            busy_s, steal_s, own_s = (ticks / self._ticks_per_s for ticks in (*self._core_ticks(), own_ticks))
            self._readings.append(Reading(time.time(), busy_s, steal_s, own_s, self._switches()))

    def between(self, start_s: float, end_s: float) -> HostLoad | None:
        """Return the load between two Unix times from the nearest readings; None if there are fewer than two."""
        readings = list(self._readings)
        if len(readings) < 2:
            return None
        last = next((reading for reading in readings[1:] if reading.time_s >= end_s), readings[-1])
        # If the process ended before the next reading, the last two readings are the nearest.
        before = [reading for reading in readings if reading.time_s <= min(start_s, last.time_s - PERIOD_S)]
        first = before[-1] if before else readings[0]
        # The time of a server that ended leaves the sum of the own processes: keep the readings on one side of it.
        runs: list[list[Reading]] = [[first]]
        for reading in readings[readings.index(first) + 1 : readings.index(last) + 1]:
            runs += [[]] if reading.own_s < runs[-1][-1].own_s else []
            runs[-1].append(reading)
        longest = max(runs, key=len)
        first, last = longest[0], longest[-1]
        seconds = last.time_s - first.time_s
        if seconds <= 0:
            return None
        available_s = seconds * len(self._cores)
        others_s = (last.busy_s - first.busy_s) - (last.own_s - first.own_s)
        return HostLoad(
            seconds=seconds,
            cores=len(self._cores),
            steal_share=max(0.0, last.steal_s - first.steal_s) / available_s,
            others_share=max(0.0, others_s) / available_s,
            involuntary_switches_per_s=max(0, last.switches - first.switches) / seconds,
        )

    def _core_ticks(self) -> tuple[int, int]:
        names = {f"cpu{core}" for core in self._cores}
        busy = steal = 0
        for line in (self._proc / "stat").read_text().splitlines():
            name, *fields = line.split()
            if name in names:
                busy += sum(map(int, fields[:3]))
                steal += int(fields[7])
        return busy, steal

    def _process_ticks(self, process: int) -> int:
        with contextlib.suppress(OSError):
            fields = (self._proc / str(process) / "stat").read_text().rsplit(")", 1)[1].split()
            # Fields 13 and 14 are the time of ended children. For a sweep's process these are earlier measurements.
            return sum(map(int, fields[11:13] if process == os.getpid() != self._process else fields[11:15]))
        return 0

    def _tree(self, process: int) -> Iterator[int]:
        yield process
        for path in (self._proc / str(process) / "task").glob("*/children"):
            with contextlib.suppress(OSError):
                for child in path.read_text().split():
                    yield from self._tree(int(child))

    def _switches(self) -> int:
        count = 0
        for path in (self._proc / str(self._process) / "task").glob("*/status"):
            with contextlib.suppress(OSError):
                count += int(path.read_text().rsplit("nonvoluntary_ctxt_switches:", 1)[1].split()[0])
        return count


def with_host_load(cell: CellKind, host: HostGauge | None) -> tuple[CellKind, str | None]:
    """Return the cell with the host load of its timed interval, and the reason if an "ok" cell is disturbed."""
    load = host.between(*cell.timed_at) if host and cell.timed_at and not cell.host_load else None
    if load is None:
        return cell, None
    return cell.model_copy(update={"host_load": load}), why_disturbed(load) if cell.status == "ok" else None


def why_disturbed(load: HostLoad) -> str | None:
    """Return the reason if other programs affected a time measured under this load; None otherwise."""
    is_preempted = load.involuntary_switches_per_s > MAXIMAL_SWITCHES_PER_S
    limit = MAXIMAL_OTHERS if is_preempted else CROWDED
    if load.others_share > max(limit, load.steal_share):
        switches = f", and preempted the process {load.involuntary_switches_per_s:.0f} times a second" * is_preempted
        return f"other programs took {percent(load.others_share, places=0)} of our cores' time meanwhile{switches}"
    if load.steal_share > MAXIMAL_STEAL:
        return f"the hypervisor took {percent(load.steal_share, places=0)} of our cores' time meanwhile"
    return None


def load_per_core(*, proc: Path = PROC) -> float:
    """Return the other runnable threads per core: the smaller of the current number and the last minute's mean."""
    average, _, _, running, _ = (proc / "loadavg").read_text().split()
    # Minus this process. The mean also counts this process's set-up.
    others = int(running.partition("/")[0]) - 1
    return min(float(average), others) / (os.cpu_count() or 1)


BUSY_CORES = 0.5  # Mean number of busy cores above which another program is running.


def disturbance(load: HostLoad | None) -> float:
    """Return the share of the cores' time that other programs and the hypervisor used; 0 if `load` is None."""
    return load.steal_share + load.others_share if load else 0.0


class Surroundings:
    """Load by other programs on this process's cores and GPU, read between repeats, outside the timed region.

    The first reading is at the start of the process, so that the host is observed while libraries are imported.
    """

    def __init__(self) -> None:
        self._host = HostGauge(os.getpid())
        self._monitor: Monitor | None = None
        self._read_s = self._started_s = time.time()
        self._host.read()

    def before(self, environment: Environment) -> list[str]:
        """Return a warning for each current disturbance of host and GPU, and start reading the GPU."""
        lines, load = [], self._load_so_far()
        if load and (cores := load.cores * disturbance(load)) > max(BUSY_CORES, MAXIMAL_OTHERS * load.cores):
            lines.append(f"other programs keep {cores:.1f} processors busy: the times may be too long; end them")
        if gpu := recorded_gpu(environment.device):
            self._monitor = Monitor(gpu)
            if others := len({*(gpu.process_ids() or ())} - {os.getpid()}):
                lines.append(f"{plural(others, 'other program uses', 'other programs use')} the GPU; end them")
        return lines

    def with_free_threads(
        self, environment: Environment, *, saved: int | None = None
    ) -> tuple[Environment, str | None]:
        """Return the environment with at most as many threads as cores were free so far, and a line to print.

        A resumed sweep keeps its `saved` number. On a GPU, or if the user has set the number of threads, return
        `environment` unchanged and None.
        """
        is_set = any(environment.variables.get(f"{library}_NUM_THREADS") for library in ("OMP", "MKL"))
        if environment.device.kind != "cpu" or is_set:
            return environment, None
        load, cores = self._load_so_far(), environment.cores or 1
        # Other programs may run on cores that a quota does not include.
        free = max(1, min(cores, round(load.cores - load.cores * disturbance(load)))) if load else cores
        threads = saved or min(environment.threads or cores, free)
        line = f"threads: {threads} ({free} of {cores} cores are free; OMP_NUM_THREADS sets another number)"
        if saved:
            line = f"threads: {saved}, as when this sweep began"
        return environment.model_copy(update={"threads": threads}), line

    def _load_so_far(self) -> HostLoad | None:
        self._host.read()
        return self._host.between(self._started_s, time.time())

    def read(self, *, now: bool = False) -> None:
        """Read the host's counters and the GPU's state, at most ten times a second unless `now` is set."""
        if now or time.time() - self._read_s >= PERIOD_S:
            self._host.read()
            if self._monitor:
                self._monitor.read()
            self._read_s = time.time()

    def beside(self, cell: CellKind, *, own_processes: int) -> tuple[CellKind, str | None]:
        """Return the cell with GPU state, host load and flags, and the reason if it is disturbed."""
        cell = with_gpu_state(cell, self._monitor, own_processes=own_processes, allow_shared=True)
        cell, why = with_host_load(cell, self._host)
        flags = (*cell.flags, "disturbed") if why else cell.flags
        if cell.status == "ok" and "shared_device" in flags:
            why = "other programs used the GPU meanwhile"
        return cell.model_copy(update={"flags": flags}), why
