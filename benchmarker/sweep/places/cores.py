"""Each place's own cores: two rounds on one host may share its memory, but never a core.

Cores of one socket and the two threads of one core stay together. GPUs are numbered by socket on most hosts, so that
share i of n is also near GPU i.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")


def share_of(
    cores: Sequence[int], slot: int, slots: int, *, order: Callable[[int], tuple[int, ...]]
) -> tuple[int, ...]:
    """The cores of one of several places, all with equally many; empty where there are fewer cores than places."""
    each = len(cores) // slots
    return tuple(sorted(cores, key=order)[slot * each : (slot + 1) * each])


def pin(slot: int, slots: int) -> None:
    """Keep this process, and all that it starts, on its share of the cores. Does nothing where there are too few."""
    if slots < 2 or not hasattr(os, "sched_setaffinity"):
        return
    if share := share_of(sorted(os.sched_getaffinity(0)), slot, slots, order=topology):
        os.sched_setaffinity(0, share)


def topology(core: int) -> tuple[int, int, int]:
    """Socket, physical core, and logical core."""
    folder = CPUS / f"cpu{core}" / "topology"
    return _number(folder / "physical_package_id"), _number(folder / "core_id"), core


def _number(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return 0
