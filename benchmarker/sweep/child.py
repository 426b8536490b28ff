"""Run one child process to its end: start it, watch its record, and enforce the time limits.

The worker must not disturb the measurement. It sleeps in a wait, checks the child's record twice a second, and reads
the child's output in a thread that blocks. A log keeps the beginning, with the settings, and the end, with the error.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Literal

from benchmarker.core.errors import ResultsError
from benchmarker.schema.record import RunRecord
from benchmarker.schema.record_io import read_record
from benchmarker.sweep import interrupt
from benchmarker.sweep.interrupt import INTERRUPTIONS, Stop, StoppedError, signal_group
from benchmarker.sweep.starter import ChildProcess
from benchmarker.sweep.sweep_state import Equipment

TICK_S = 0.5
HEAD_BYTES = 256 * 1024
TAIL_BYTES = 64 * 1024
TAIL_LINES = 8
"""Last lines of a failed child that the terminal shows."""
SHOWN_LINES = 60
"""Lines of one child that reach the terminal; the log has more."""
LINE_BYTES = 4096
KILL_COUNTERS = (
    Path("/sys/fs/cgroup/memory.events"),
    Path("/sys/fs/cgroup/memory/memory.oom_control"),
    # Counts the kills of the entire machine, also those of other users' processes.
    Path("/proc/vmstat"),
)

Phase = Literal["load", "cell", "end"]
PHASE_NAMES: dict[Phase, str] = {"load": "loading", "cell": "the cell", "end": "the work after the cells"}


@dataclass(frozen=True)
class ChildEnd:
    code: int
    """Exit code; negative for a signal, as in subprocess."""
    late: str | None
    """Time limit that the child exceeded; None if it ended by itself."""
    killed_for_memory: bool


class Watch:
    """Progress of a child, read from its record."""

    def __init__(self, path: Path, cells: int) -> None:
        self.path = path
        self.record: RunRecord | None = None
        self._cells = cells
        self._stamp: tuple[int, int] | None = None

    @property
    def phase(self) -> Phase:
        if self.record is None or self.record.opened_at is None:
            return "load"
        return "cell" if len(self.record.cells) < self._cells else "end"

    def update(self) -> bool:
        """Read the record again if the file has changed; return True if it has."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        stamp = (status.st_ino, status.st_mtime_ns)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        # A record that cannot be read is examined when the child has ended.
        with contextlib.suppress(ResultsError):
            self.record = read_record(self.path)
        return True


class CappedLog:
    """A log file of at most 320 KiB and one line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem: str | None = None
        """Reason for which the file is incomplete; None if it is complete."""
        self._room = HEAD_BYTES
        self._tail = bytearray()
        self._left_out = 0
        self._file: FileIO | None = None
        try:
            self._file = FileIO(path, "w")
        except OSError as error:
            self._give_up(error)

    def write(self, chunk: bytes) -> None:
        """Add to the log. Never raises: a log is not worth a measurement."""
        head, rest = chunk[: self._room], chunk[self._room :]
        if head:
            self._room -= len(head)
            self._to_file(head)
        # Kept from the start, so that the end can be shown without reading the file back.
        self._tail += chunk
        self._left_out += len(rest)
        del self._tail[:-TAIL_BYTES]

    def close(self) -> None:
        """Write the end of the output and close the file."""
        tail = self._tail[-self._left_out :] if self._left_out else b""
        skipped = self._left_out - len(tail)
        if skipped:
            self._to_file(f"\n... {skipped:,} bytes left out ...\n".encode())
        self._to_file(bytes(tail))
        if self._file:
            self._file.close()
            self._file = None

    @property
    def last_lines(self) -> tuple[str, ...]:
        """Last lines that are not empty."""
        lines = self._tail.decode(errors="replace").splitlines()
        return tuple(line.rstrip() for line in lines if line.strip())[-TAIL_LINES:]

    def _to_file(self, chunk: bytes) -> None:
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


class Output:
    """Reads a child's output in a thread, into the log and as lines for the terminal."""

    def __init__(self, stream: IO[bytes], log: CappedLog) -> None:
        self._stream = stream
        self._log = log
        self._lines: deque[str] = deque()
        self._shown = 0
        self._part = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def lines(self) -> list[str]:
        """Return the lines since the last call, as far as they are shown."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def finish(self) -> None:
        """Wait for the end of the stream, but not long: a grandchild may hold the stream open."""
        self._thread.join(interrupt.GRACE_S)
        if not self._thread.is_alive():
            self._stream.close()
        self._log.close()

    def _read(self) -> None:
        while chunk := os.read(self._stream.fileno(), 65536):
            self._log.write(chunk)
            if self._shown < SHOWN_LINES:
                *complete, part = (self._part + chunk).split(b"\n")
                self._part = part[:LINE_BYTES]
                self._show(complete)
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
    equipment: Equipment,
    *,
    round_number: int | None,
    watch: Watch,
    log: CappedLog,
    limit_s: Callable[[Phase], float],
    step: Callable[[list[str]], None],
    begun: Callable[[int], None] = lambda pid: None,
) -> ChildEnd:
    """Run a child to its end.

    Args:
        round_number: Round that it measures; None for the measurements after all rounds.
        limit_s: Longest time for each phase, and for each cell.
        step: Called at most a few times a second with new lines of output, after `watch` has been updated.
        begun: Called with the number of the new process.

    Raises:
        StoppedError: The sweep is being stopped. The child was interrupted and has saved its finished cells.
    """
    kills = out_of_memory_kills()
    output: Output | None = None
    reading, writing = os.pipe()
    stream = os.fdopen(reading, "rb", buffering=0)
    try:
        process = equipment.starter.start(command, writing, round_number=round_number)
    except BaseException:
        stream.close()
        raise
    finally:
        os.close(writing)
    try:
        begun(process.pid)
        output = Output(stream, log)
        late = _wait(process, watch, output, equipment.stop, limit_s, step)
        if late:
            Stop().end(process, signal.SIGTERM, signal.SIGKILL)
    except INTERRUPTIONS:
        equipment.stop.end(process, signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
        raise
    except BaseException:
        equipment.stop.end(process, signal.SIGKILL)
        raise
    finally:
        signal_group(process, signal.SIGKILL)
        if output:
            output.finish()
        else:
            log.close()
        watch.update()
    step(output.lines())
    code = process.wait()
    more_kills = kills is not None and (out_of_memory_kills() or 0) > kills
    return ChildEnd(code, late, code == -signal.SIGKILL and not late and more_kills)


def out_of_memory_kills() -> int | None:
    """Return the kernel's number of kills for lack of memory, by the narrowest counter; None if there is none.

    A process that is killed for lack of memory dies of SIGKILL and cannot report the reason.
    """
    for path in KILL_COUNTERS:
        with contextlib.suppress(OSError):
            match = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE)
            if match:
                return int(match.group(1))
    return None


def _wait(
    process: ChildProcess,
    watch: Watch,
    output: Output,
    stop: Stop,
    limit_s: Callable[[Phase], float],
    step: Callable[[list[str]], None],
) -> str | None:
    """Sleep until the child has ended or exceeded a limit; return a sentence about the limit."""
    since = time.monotonic()
    while True:
        try:
            process.wait(TICK_S)
            return None
        except subprocess.TimeoutExpired:
            pass
        phase, now = watch.phase, time.monotonic()
        if watch.update():
            since = now
        step(output.lines())
        if stop.requests:
            raise StoppedError
        if now - since > limit_s(phase):
            return f"{PHASE_NAMES[phase]} took more than {limit_s(phase):g} s"
