"""State of the current process: garbage collection, and its end when the parent dies."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PARENT = "BENCHMARKER_PARENT"
FORKED = "BENCHMARKER_FORKED"
"""Environment variable that is set in children forked from the process that imported their libraries."""
_SET_PARENT_DEATH_SIGNAL = 1


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Switch garbage collection off (in timed regions, or while many lasting objects are made), and restore it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def end_with_parent() -> None:
    """Let the Linux kernel kill this process when its parent dies. Does nothing on other systems.

    A child that outlives its sweep would go on measuring and disturb the next sweep.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    # The parent may have died before the call above. Only a comparison with its own number can show that: in a
    # container the sweep itself may be process 1, which otherwise adopts orphans.
    parent = os.environ.get(PARENT)
    if parent is not None and parent != str(os.getppid()):
        os.kill(os.getpid(), signal.SIGKILL)
