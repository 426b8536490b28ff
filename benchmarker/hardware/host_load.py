"""What else ran on our cores while a process was measured, seen from outside it.

The kernel counts, for each core, the time that anything ran on it and the time that a hypervisor took (steal), and for
each process how often it was put aside for another. The measured process is asked nothing: reading these counters
twice a second from the process that watches it takes a thousandth of a core.
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
from benchmarker.schema.environment import HostLoad

PROC = Path("/proc")
CAPACITY = 2 * 3600 * 2
"""Two hours of readings, twice a second."""
MOST_STEAL = 0.02
MOST_OTHERS = 0.05
MOST_SWITCHES_PER_S = 10.0
"""A process that keeps its core is put aside once or twice a second. Others' time alone disturbs nobody where cores are
left over."""


@dataclass(frozen=True)
class Reading:
    """Counters at one moment, in seconds since some beginning."""

    time_s: float
    busy_s: float
    steal_s: float
    own_s: float
    switches: int


class HostGauge:
    """Readings around one child."""

    def __init__(self, process: int, *, proc: Path = PROC) -> None:
        self._process, self._proc = process, proc
        self._cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._readings: deque[Reading] = deque(maxlen=CAPACITY)

    def read(self) -> None:
        """Keep the counters as they are now; nothing where the system has none, or the process has ended."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            busy, steal = self._core_ticks()
            process_ticks = sum(self._process_ticks(number) for number in (os.getpid(), *self._tree(self._process)))
            per_s = self._ticks_per_s
            self._readings.append(
                Reading(time.time(), busy / per_s, steal / per_s, process_ticks / per_s, self._switches())
            )

    def between(self, start_s: float, end_s: float) -> HostLoad | None:
        """The load from one Unix time to another, by the readings next to it; None where there are no two."""
        readings = list(self._readings)
        before = [reading for reading in readings if reading.time_s <= start_s]
        after = [reading for reading in readings if reading.time_s >= end_s]
        if len(readings) < 2 or not self._cores:
            return None
        first, last = before[-1] if before else readings[0], after[0] if after else readings[-1]
        seconds = last.time_s - first.time_s
        if seconds <= 0:
            return None
        room_s = seconds * len(self._cores)
        others_s = (last.busy_s - first.busy_s) - (last.own_s - first.own_s)
        return HostLoad(
            seconds=seconds,
            cores=len(self._cores),
            steal_share=max(0.0, last.steal_s - first.steal_s) / room_s,
            others_share=max(0.0, others_s) / room_s,
            involuntary_switches_per_s=max(0, last.switches - first.switches) / seconds,
        )

    def _core_ticks(self) -> tuple[int, int]:
        """Of our cores: user, nice and system time together, and steal."""
        wanted = {f"cpu{core}" for core in self._cores}
        busy = steal = 0
        for line in (self._proc / "stat").read_text().splitlines():
            name, *fields = line.split()
            if name in wanted:
                busy += sum(map(int, fields[:3]))
                steal += int(fields[7])
        return busy, steal

    def _process_ticks(self, number: int) -> int:
        """Time of a process and of its children that have ended."""
        with contextlib.suppress(OSError):
            fields = (self._proc / str(number) / "stat").read_text().rsplit(")", 1)[1].split()
            return sum(map(int, fields[11:13] if number == os.getpid() else fields[11:15]))
        return 0

    def _tree(self, number: int) -> Iterator[int]:
        """A process and all that it started."""
        yield number
        for path in (self._proc / str(number) / "task").glob("*/children"):
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
    """Why a time that was measured under this load is of others too; None where it is not."""
    if load.steal_share > MOST_STEAL:
        return f"the hypervisor took {percent(load.steal_share, places=0)} of our cores' time meanwhile"
    if load.others_share > MOST_OTHERS and load.involuntary_switches_per_s > MOST_SWITCHES_PER_S:
        return (
            f"other programs took {percent(load.others_share, places=0)} of our cores' time meanwhile, and put the "
            f"process aside {load.involuntary_switches_per_s:.0f} times a second"
        )
    return None
