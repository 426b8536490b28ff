"""Processors and memory that this process may use; a container or a job scheduler may grant a part of the machine."""

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
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def cpu_name() -> str:
    with contextlib.suppress(OSError):
        match = re.search(r"^model name\s*:\s*(.+)$", (PROC / "cpuinfo").read_text(), re.MULTILINE)
        if match:
            return " ".join(match.group(1).split())
    return platform.processor() or platform.machine()


def governor() -> str | None:
    return _text(GOVERNOR) or None


def cores() -> int:
    """Return the number of logical processors in this process's affinity, limited by the control group's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [math.ceil(quota) for quota in _processor_quotas()]
    return max(1, min([allowed, *quotas]))


def memory_bytes() -> int:
    """Return the machine's main memory, limited by the control group."""
    limits = [
        int(text)
        for folder in _control_groups("memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := _text(folder / name)).isdigit()
    ]
    return min([psutil.virtual_memory().total, *limits])


def _processor_quotas() -> Iterator[float]:
    for folder in _control_groups("cpu"):
        # Version 2 has both numbers in one file (`max 100000`: no quota), version 1 two files (-1: none).
        both = _text(folder / "cpu.max") or (
            f"{_text(folder / 'cpu.cfs_quota_us')} {_text(folder / 'cpu.cfs_period_us')}"
        )
        quota, _, period = both.partition(" ")
        if quota.isdigit() and period.isdigit() and int(quota) > 0:
            yield int(quota) / int(period)


def _control_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of its parents, each of which may set a limit."""
    for line in _text(PROC / "self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUPS / controllers if controllers else CGROUPS
        folder = root / group.lstrip("/")
        # In a container the path may be the host's, which is not mounted; the root is then the container's group.
        yield from (path for path in [folder, *folder.parents] if path.is_relative_to(root) and path.is_dir())


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""
