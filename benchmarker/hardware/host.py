"""The host's share that is ours: a container or a job scheduler may grant less than the machine has."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import psutil

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def cpu_name() -> str:
    """The processor's name as its maker writes it, or else its architecture."""
    with contextlib.suppress(OSError):
        match = re.search(r"^model name\s*:\s*(.+)$", (PROC / "cpuinfo").read_text(), re.MULTILINE)
        if match:
            return " ".join(match.group(1).split())
    return platform.processor() or platform.machine()


def cores() -> int:
    """Logical processors this process may use: its affinity, cut by the control group's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [math.ceil(quota) for quota in _processor_quotas()]
    return max(1, min([allowed, *quotas]))


def memory_bytes() -> int:
    """Main memory this process may use: the machine's, cut by the control group's limit."""
    limits = [
        int(text)
        for folder in _control_groups("memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := _text(folder / name)).isdigit()
    ]
    return min([psutil.virtual_memory().total, *limits])


def _processor_quotas() -> Iterator[float]:
    """Processors granted by each control group that sets a quota."""
    for folder in _control_groups("cpu"):
        # Version 2 has both numbers in one file, `max 100000` for no quota; version 1 has two files, -1 for none.
        both = _text(folder / "cpu.max") or (
            f"{_text(folder / 'cpu.cfs_quota_us')} {_text(folder / 'cpu.cfs_period_us')}"
        )
        quota, _, period = both.partition(" ")
        if quota.isdigit() and period.isdigit() and int(quota) > 0:
            yield int(quota) / int(period)


def _control_groups(controller: str) -> Iterator[Path]:
    """Folders of this process's control group and of its parents: a limit on any of them binds."""
    for line in _text(PROC / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUPS / controllers if controllers else CGROUPS
        folder = root / path.lstrip("/")
        # In a container the path may be the host's, which is not mounted here; the root then is our own group.
        yield from (place for place in [folder, *folder.parents] if place.is_relative_to(root) and place.is_dir())


def _text(path: Path) -> str:
    """The file's text; empty where there is no such file."""
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""
