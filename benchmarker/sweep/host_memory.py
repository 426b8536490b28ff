"""Did the system kill a process for want of memory? The kernel counts such kills, for a control group and in all.

A process that is killed for it dies of SIGKILL like any other that is, and cannot say why.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

COUNTERS = (
    Path("/sys/fs/cgroup/memory.events"),
    Path("/sys/fs/cgroup/memory/memory.oom_control"),
    # Of the whole machine, so that it also counts what happened to others.
    Path("/proc/vmstat"),
)


def out_of_memory_kills() -> int | None:
    """Kills so far, by the narrowest counter there is; None where the system does not count."""
    for path in COUNTERS:
        with contextlib.suppress(OSError):
            match = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE)
            if match:
                return int(match.group(1))
    return None
