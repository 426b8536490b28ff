"""Output of a child process: a log file of limited size, and the lines that reach the terminal.

The beginning of a log shows the settings and its end the error; a child that prints 100 MB in between fills neither the
disk nor the memory.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import IO

HEAD_BYTES = 256 * 1024
TAIL_BYTES = 64 * 1024
TAIL_LINES = 8
"""Last lines of a failed child that the terminal shows."""
SHOWN_LINES = 60
"""Lines of one child that reach the terminal; the log has more."""
LINE_BYTES = 4096


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

    def finish(self, timeout_s: float) -> None:
        """Wait for the end of the stream, but not longer than the timeout: a grandchild may hold the stream open."""
        self._thread.join(timeout_s)
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
