"""Ctrl-C and the time limit of a sweep.

1. The main thread leaves `Loop.run` in `run_sweep` with KeyboardInterrupt, or with SweepTimeoutError after `--timeout`.
2. The pool requests a stop. Each worker's wait for its child raises StoppedError.
3. The child receives SIGINT and saves its finished cells. Another Ctrl-C, or five seconds, send a stronger signal.
4. The finished cells are compared; then Ctrl-C ends the command with exit code 130, as `one_line_errors` does for all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarker.sweep.fork_server import ChildProcess

TICK_S = 0.05
GRACE_S = 5.0
"""Time between one signal and the next, stronger one."""


class StoppedError(Exception):
    """The sweep is being stopped, by Ctrl-C or because its time is up."""


class SweepTimeoutError(Exception):
    """The time for the entire sweep is up."""


INTERRUPTIONS = (KeyboardInterrupt, StoppedError)
"""Ends of a wait for a child. Ray interrupts the thread that waits."""


class Stop:
    """Requests to end the children of some workers. Each further request sends the next stronger signal."""

    def __init__(self) -> None:
        self.requests = 0

    def request(self, workers: Sequence[threading.Thread] = ()) -> None:
        """Request the end, and wait for the workers' threads; Ctrl-C meanwhile is a further request."""
        self.requests += 1
        for worker in workers:
            while worker.is_alive():
                try:
                    worker.join(2 * TICK_S)
                except KeyboardInterrupt:
                    self.requests += 1

    def end(self, process: ChildProcess, *signals: signal.Signals) -> None:
        for number in signals:
            signal_group(process, number)
            requests, until_s = self.requests, time.monotonic() + GRACE_S
            while time.monotonic() < until_s and self.requests == requests:
                # Ray and a second Ctrl-C interrupt this thread itself.
                with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                    process.wait(TICK_S)
                    return
        # A process that is stuck in the driver cannot be killed before the driver returns.
        process.wait()


def signal_group(process: ChildProcess, number: signal.Signals) -> None:
    """Send a signal to a child and its own children. In a session of its own, it does not receive the terminal's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
