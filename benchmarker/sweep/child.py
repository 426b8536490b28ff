"""Run one child process to its end: start it, watch its record, enforce the time limits, and interrupt it.

The worker must not disturb the measurement. It sleeps in a wait, checks the child's record twice a second, and reads
the child's output in a thread that blocks.

Ctrl-C or `--timeout` ends `Loop.run` in the main thread. The pool requests a stop, so that each worker's wait for its
child raises SweepInterruptedError. The child receives SIGINT and saves its finished cells; after another Ctrl-C, or
after five seconds, it receives a stronger signal. The finished cells are compared before the command ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Literal

from benchmarker.core.errors import ResultsError
from benchmarker.core.process import signal_group
from benchmarker.execution.jobs import job_path
from benchmarker.schema.job import Part
from benchmarker.schema.record import RunRecord
from benchmarker.schema.record_io import read_record
from benchmarker.sweep.fork_server import ChildProcess
from benchmarker.sweep.sweep_state import Equipment, Sweep

TICK_S = 0.5
STOP_TICK_S = 0.05
GRACE_S = 5.0
"""Time that a child has to end after a signal, before it receives a stronger one."""
HEAD_BYTES = 256 * 1024
TAIL_BYTES = 64 * 1024
SHOWN_LINES = 60
"""Maximum number of lines of one child that are printed; the log has more."""
LINE_BYTES = 4096
KILL_COUNTERS = (
    Path("/sys/fs/cgroup/memory.events"),
    Path("/sys/fs/cgroup/memory/memory.oom_control"),
    # Counts the kills of the entire machine, also those of other users' processes.
    Path("/proc/vmstat"),
)

Phase = Literal["load", "cell", "end"]
PHASE_NAMES: dict[Phase, str] = {"load": "loading", "cell": "the cell", "end": "the work after the cells"}


class SweepInterruptedError(Exception):
    """The sweep is being stopped, by Ctrl-C or because its time is up."""


class SweepTimeoutError(Exception):
    """The time for the entire sweep is up."""


INTERRUPTIONS = (KeyboardInterrupt, SweepInterruptedError)
"""Exceptions that end a wait for a child. Ray raises KeyboardInterrupt in the waiting thread."""


class SweepInterruption:
    """Requests to end the children of some workers. Each further request sends the next stronger signal."""

    def __init__(self) -> None:
        self.requests = 0

    def request(self, workers: Sequence[threading.Thread] = ()) -> None:
        """Request the end, and wait for the workers' threads. Each Ctrl-C during the wait is a further request."""
        self.requests += 1
        for worker in workers:
            while worker.is_alive():
                try:
                    worker.join(2 * STOP_TICK_S)
                except KeyboardInterrupt:
                    self.requests += 1

    def end(self, process: ChildProcess, *signals: signal.Signals) -> None:
        for number in signals:
            signal_group(process.pid, number)
            requests, until_s = self.requests, time.monotonic() + GRACE_S
            while time.monotonic() < until_s and self.requests == requests:
                # Ray and a second Ctrl-C interrupt this thread itself.
                with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                    process.wait(STOP_TICK_S)
                    return
        # A process that is stuck in the driver cannot be killed before the driver returns.
        process.wait()


@dataclass(frozen=True)
class ChildEnd:
    code: int
    late: str | None
    """Time limit that the child exceeded; None if it ended by itself."""
    killed_for_memory: bool


class Log:
    """Output of a child, read by a thread: a file with the first 256 and last 64 KiB, and lines for the terminal.

    Errors of the file are not raised, because they must not end a measurement.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem: str | None = None
        """Reason for which the file is incomplete; None if it is complete."""
        self._file: FileIO | None = None
        self._thread: threading.Thread | None = None
        self._size = 0
        # Kept from the start, so that the end can be shown without reading the file back.
        self._tail = b""
        self._lines: deque[str] = deque()
        self._shown = 0
        try:
            self._file = FileIO(path, "w")
        except OSError as error:
            self._give_up(error)

    def follow(self, stream: IO[bytes]) -> None:
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def lines(self) -> list[str]:
        return [self._lines.popleft() for _ in range(len(self._lines))]

    @property
    def last_lines(self) -> tuple[str, ...]:
        lines = self._tail.decode(errors="replace").splitlines()
        return tuple(line.rstrip() for line in lines if line.strip())[-8:]

    def finish(self) -> None:
        """Wait up to 5 s for the end of the stream, which a grandchild may hold open; then close the file."""
        if self._thread:
            self._thread.join(GRACE_S)
        left_out = max(0, self._size - HEAD_BYTES)
        tail = self._tail[-left_out:] if left_out else b""
        if skipped := left_out - len(tail):
            self._write(f"\n... {skipped:,} bytes left out ...\n".encode())
        self._write(tail)
        if self._file:
            self._file.close()
            self._file = None

    def _read(self, stream: IO[bytes]) -> None:
        part = b""
        with stream:
            while chunk := os.read(stream.fileno(), 65536):
                self._write(chunk[: max(0, HEAD_BYTES - self._size)])
                self._size += len(chunk)
                self._tail = (self._tail + chunk)[-TAIL_BYTES:]
                if self._shown < SHOWN_LINES:
                    *complete, part = (part + chunk).split(b"\n")
                    part = part[:LINE_BYTES]
                    self._show(complete)
        self._show([part])

    def _show(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            text = line[:LINE_BYTES].decode(errors="replace").rstrip()
            if text.strip() and self._shown < SHOWN_LINES:
                self._shown += 1
                self._lines.append(text)
                if self._shown == SHOWN_LINES:
                    self._lines.append(f"... the rest is in {self.path}")

    def _write(self, chunk: bytes) -> None:
        if self._file and chunk:
            try:
                self._file.write(chunk)
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.problem = f"{self.path}: the log is incomplete: {error.strerror}"
        if self._file:
            self._file.close()
            self._file = None


class Child:
    """One child of a sweep; subclasses give its time limits and print its output."""

    def __init__(self, sweep: Sweep, equipment: Equipment, variant: str, path: Path, cells: tuple[int, ...]) -> None:
        """Prepare a child; `path` is the record's path, and `cells` are positions in the grid."""
        self.sweep, self.equipment, self.variant, self.path, self.cells = sweep, equipment, variant, path, cells
        self.log = Log(path.with_name(path.name.strip(".")).with_suffix(".log"))
        self.record: RunRecord | None = None
        self.problem: str | None = None
        """Reason for which the file of the record cannot be read; None if it can be read or does not exist."""
        self._stamp: tuple[int, int] | None = None

    @property
    def phase(self) -> Phase:
        if self.record is None or self.record.opened_at is None:
            return "load"
        return "cell" if len(self.record.cells) < len(self.cells) else "end"

    def limit_s(self, phase: Phase) -> float:
        raise NotImplementedError

    def begin(self, pid: int) -> None: ...

    def show(self, lines: list[str]) -> None:
        """Print new lines of output; called at most a few times a second, after the record has been read."""
        raise NotImplementedError

    def run(self, part: Part, *, round_number: int | None) -> ChildEnd:
        """Run the child to its end; `round_number` is None for a quality measurement. Raises one of INTERRUPTIONS."""
        kills, stop = out_of_memory_kills(), self.equipment.stop
        reading, writing = os.pipe()
        stream = os.fdopen(reading, "rb", buffering=0)
        try:
            job = str(job_path(self.sweep.folder, self.variant))
            command = [*self.sweep.run, "--job", job, "--part", part.model_dump_json(), *self.sweep.display]
            process = self.equipment.starter.start(command, writing, round_number=round_number)
        except BaseException:
            stream.close()
            raise
        finally:
            os.close(writing)
        try:
            self.begin(process.pid)
            self.log.follow(stream)
            if late := self._wait(process):
                SweepInterruption().end(process, signal.SIGTERM, signal.SIGKILL)
        except INTERRUPTIONS:
            stop.end(process, signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
            raise
        except BaseException:
            stop.end(process, signal.SIGKILL)
            raise
        finally:
            signal_group(process.pid, signal.SIGKILL)
            self.log.finish()
            self.update()
        self.show(self.log.lines())
        code = process.wait()
        more_kills = kills is not None and (out_of_memory_kills() or 0) > kills
        return ChildEnd(code, late, code == -signal.SIGKILL and not late and more_kills)

    def update(self) -> bool:
        """Read the record again if the file has changed; return True if it has."""
        before = self._stamp
        with contextlib.suppress(OSError):
            status = self.path.stat()
            self._stamp = (status.st_ino, status.st_mtime_ns)
        if self._stamp == before:
            return False
        try:
            self.record, self.problem = read_record(self.path), None
        except ResultsError as error:
            self.problem = str(error)
        return True

    def _wait(self, process: ChildProcess) -> str | None:
        """Wait for the child's end and return None; if it exceeds a time limit, return a sentence about the limit."""
        since = time.monotonic()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TICK_S)
                return None
            # Lines are taken before the record, which then has every cell that was finished before these lines.
            lines, phase, now = self.log.lines(), self.phase, time.monotonic()
            if self.update():
                since = now
            self.show(lines)
            if self.equipment.stop.requests:
                raise SweepInterruptedError
            if now - since > self.limit_s(phase):
                return f"{PHASE_NAMES[phase]} took more than {self.limit_s(phase):g} s"


def out_of_memory_kills() -> int | None:
    """Return the kernel's number of out-of-memory kills, of the narrowest scope with a counter; None without one."""
    for path in KILL_COUNTERS:
        with contextlib.suppress(OSError):
            if match := re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE):
                return int(match.group(1))
    return None
