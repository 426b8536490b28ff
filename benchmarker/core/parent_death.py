"""A child that outlives its sweep would go on measuring, and disturb the sweep that takes over."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT = "BENCHMARKER_PARENT"
"""Variable in which a sweep tells its children its process number."""
FORKED = "BENCHMARKER_FORKED"
"""Variable that is set in a child which is a fork of the process that imported its libraries."""
_SET_PARENT_DEATH_SIGNAL = 1


def end_with_parent() -> None:
    """Let the kernel end this process when its parent dies, however it dies. Does nothing outside Linux.

    Elsewhere the child ends a little later: at its next line, for want of a reader.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    # The parent may have died before the kernel was told. Nobody else's number tells: in a container the sweep itself
    # may be process 1, which elsewhere adopts orphans.
    parent = os.environ.get(PARENT)
    if parent is not None and parent != str(os.getppid()):
        os.kill(os.getpid(), signal.SIGKILL)
