"""Load of the host while a process was measured, observed from outside the process.

The kernel counts, for each core, the time that anything ran on it and the time that a hypervisor took (steal), and for
each process how often it was preempted. The parent reads these counters twice a second, which takes a thousandth of a
core; the measured process does nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarker.core.formatting import percent
from benchmarker.schema.record import HostLoad

PROC = Path("/proc")
CAPACITY = 2 * 3600 * 2
MAXIMAL_STEAL = 0.02
MAXIMAL_OTHERS = 0.05
MAXIMAL_SWITCHES_PER_S = 10.0
"""Limit of preemptions per second. A process that keeps its core has one or two. Other programs disturb nobody if there
are idle cores.
"""


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
        self._cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._readings: deque[Reading] = deque(maxlen=CAPACITY)

    def read(self) -> None:
        """Store the current counters. Does nothing if the system has none or the process has ended."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            busy, steal = self._core_ticks()
            process_ticks = sum(self._process_ticks(process) for process in (os.getpid(), *self._tree(self._process)))
            per_s = self._ticks_per_s
            self._readings.append(
                Reading(time.time(), busy / per_s, steal / per_s, process_ticks / per_s, self._switches())
            )

    def between(self, start_s: float, end_s: float) -> HostLoad | None:
        """Return the load between two Unix times from the readings next to them; None with fewer than two."""
        readings = list(self._readings)
        before = [reading for reading in readings if reading.time_s <= start_s]
        after = [reading for reading in readings if reading.time_s >= end_s]
        if len(readings) < 2 or not self._cores:
            return None
        first, last = before[-1] if before else readings[0], after[0] if after else readings[-1]
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
        """Return, summed over this process's cores, user + nice + system time, and steal."""
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
            return sum(map(int, fields[11:13] if process == os.getpid() else fields[11:15]))
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


def why_disturbed(load: HostLoad) -> str | None:
    """Return the reason if other programs affected a time measured under this load; None otherwise."""
    if load.steal_share > MAXIMAL_STEAL:
        return f"the hypervisor took {percent(load.steal_share, places=0)} of our cores' time meanwhile"
    if load.others_share > MAXIMAL_OTHERS and load.involuntary_switches_per_s > MAXIMAL_SWITCHES_PER_S:
        return (
            f"other programs took {percent(load.others_share, places=0)} of our cores' time meanwhile, and put the "
            f"process aside {load.involuntary_switches_per_s:.0f} times a second"
        )
    return None
