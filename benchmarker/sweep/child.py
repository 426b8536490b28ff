"""One child process: started in a session of its own, watched, and ended when its time is up.

The parent must not disturb what it watches. It sleeps in a wait, looks twice a second at the record that the child
replaces after every step, and reads the child's output in a thread that blocks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from benchmarker.core.errors import ResultsError
from benchmarker.schema.record import RunRecord
from benchmarker.schema.record_io import read_record
from benchmarker.sweep.child_log import CappedLog
from benchmarker.sweep.child_process import ChildProcess, Starter
from benchmarker.sweep.host_memory import out_of_memory_kills

TICK_S = 0.5
GRACE_S = 5.0
"""Between one signal and the next, stronger one."""
SHOWN_LINES = 60
"""Lines of one child that reach the terminal; the log has more."""
LINE_BYTES = 4096

Phase = Literal["load", "cell", "end"]


@dataclass(frozen=True)
class Ended:
    """How a child came to its end."""

    code: int
    """Its exit code; negative for a signal, as subprocess gives it."""
    late: str | None
    """Which time limit it broke; None if it ended by itself."""
    seconds: float
    killed_for_memory: bool


class SweepTimeoutError(Exception):
    """The time for the whole sweep is up."""


class Watch:
    """How far a child is, read from its record."""

    def __init__(self, path: Path, cells: int) -> None:
        self.path = path
        self.record: RunRecord | None = None
        self._cells = cells
        self._seen: tuple[int, int] | None = None

    @property
    def phase(self) -> Phase:
        if self.record is None or self.record.opened_at is None:
            return "load"
        return "cell" if len(self.record.cells) < self._cells else "end"

    def look(self) -> bool:
        """Read the record again if it has changed; whether it has."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        stamp = (status.st_ino, status.st_mtime_ns)
        if stamp == self._seen:
            return False
        self._seen = stamp
        # One that cannot be read is looked into when the child has ended.
        with contextlib.suppress(ResultsError):
            self.record = read_record(self.path)
        return True


class Output:
    """Takes what a child prints, into the log and for the terminal."""

    def __init__(self, stream: IO[bytes], log: CappedLog) -> None:
        self._stream = stream
        self._log = log
        self._lines: deque[str] = deque()
        self._shown = 0
        self._part = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def lines(self) -> list[str]:
        """What came since the last call, as far as it is shown."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def finish(self) -> None:
        """Wait for the end, but not for a grandchild that holds on to the stream."""
        self._thread.join(GRACE_S)
        if not self._thread.is_alive():
            self._stream.close()
        self._log.close()

    def _read(self) -> None:
        while chunk := os.read(self._stream.fileno(), 65536):
            self._log.write(chunk)
            if self._shown < SHOWN_LINES:
                *whole, part = (self._part + chunk).split(b"\n")
                self._part = part[:LINE_BYTES]
                self._show(whole)
        self._show([self._part])

    def _show(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            text = line[:LINE_BYTES].decode(errors="replace").rstrip()
            if text.strip() and self._shown < SHOWN_LINES:
                self._shown += 1
                self._lines.append(text)
                if self._shown == SHOWN_LINES:
                    self._lines.append(f"... the rest is in {self._log.path}")


def run_child(
    command: Sequence[str],
    *,
    starter: Starter,
    round_number: int | None,
    watch: Watch,
    log: CappedLog,
    limit_s: Callable[[Phase], float],
    deadline_s: float | None,
    step: Callable[[list[str]], None],
    begun: Callable[[int], None] = lambda process: None,
) -> Ended:
    """Run a child to its end.

    Args:
        round_number: The round that it measures; None for what is measured after all rounds.
        limit_s: Longest time for each phase, and for each cell of that phase.
        deadline_s: When the whole sweep must end, on the monotonic clock.
        step: Called a few times a second at most, with new lines of output, after `watch` has looked.

    Raises:
        KeyboardInterrupt: Ctrl-C. The child got it too, has saved its finished cells and ended.
        SweepTimeoutError: The deadline passed; the child was interrupted likewise.
    """
    kills = out_of_memory_kills()
    started = time.monotonic()
    output: Output | None = None
    reading, writing = os.pipe()
    stream = os.fdopen(reading, "rb", buffering=0)
    try:
        process = starter.start(command, writing, round_number=round_number)
    except BaseException:
        stream.close()
        raise
    finally:
        os.close(writing)
    try:
        begun(process.pid)
        output = Output(stream, log)
        late = _wait(process, watch, output, limit_s, deadline_s, step)
        if late:
            _end(process, signal.SIGTERM, signal.SIGKILL)
    except (KeyboardInterrupt, SweepTimeoutError):
        # In a session of its own, the child did not get the terminal's Ctrl-C.
        _end(process, signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
        raise
    except BaseException:
        _end(process, signal.SIGKILL)
        raise
    finally:
        _signal_group(process, signal.SIGKILL)
        if output:
            output.finish()
        else:
            log.close()
        watch.look()
    step(output.lines())
    code = process.returncode
    more_kills = kills is not None and (out_of_memory_kills() or 0) > kills
    return Ended(code, late, time.monotonic() - started, code == -signal.SIGKILL and not late and more_kills)


def _wait(
    process: ChildProcess,
    watch: Watch,
    output: Output,
    limit_s: Callable[[Phase], float],
    deadline_s: float | None,
    step: Callable[[list[str]], None],
) -> str | None:
    """Sleep until the child has ended or broken a limit; which one it broke."""
    since = time.monotonic()
    while True:
        try:
            process.wait(TICK_S)
            return None
        except subprocess.TimeoutExpired:
            pass
        phase, now = watch.phase, time.monotonic()
        if watch.look():
            since = now
        step(output.lines())
        if deadline_s is not None and now > deadline_s:
            raise SweepTimeoutError
        if now - since > limit_s(phase):
            what = {"load": "loading", "cell": "the cell", "end": "what follows the cells"}[phase]
            return f"{what} took more than {limit_s(phase):g} s"


def _end(process: ChildProcess, *signals: signal.Signals) -> None:
    """Send the signals to the child's whole group, one after another, until it has ended."""
    for number in signals:
        _signal_group(process, number)
        # A second Ctrl-C asks for the next signal at once.
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(GRACE_S)
            return
    # A process that is stuck in the driver cannot be killed before the driver lets go.
    process.wait()


def _signal_group(process: ChildProcess, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
