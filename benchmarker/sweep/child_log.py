"""What a child printed, on disk: the beginning and the end of it, however much there was.

The beginning says what was done, the end why it failed; a child that prints 100 MB between them fills neither the disk
nor the memory.
"""

from __future__ import annotations

from io import FileIO
from pathlib import Path

HEAD_BYTES = 256 * 1024
TAIL_BYTES = 64 * 1024
TAIL_LINES = 8
"""Of what a child that failed said last, for the terminal."""


class CappedLog:
    """A log file of at most 320 KiB and one line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem: str | None = None
        """Why the file is not whole, where it could not be written."""
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
        # Kept from the very start, so that the end can be shown without reading the file back.
        self._tail += chunk
        self._left_out += len(rest)
        del self._tail[:-TAIL_BYTES]

    def close(self) -> None:
        """Write the end."""
        tail = self._tail[-self._left_out :] if self._left_out else b""
        skipped = self._left_out - len(tail)
        if skipped:
            self._to_file(f"\n... {skipped:,} bytes left out ...\n".encode())
        self._to_file(bytes(tail))
        if self._file:
            self._file.close()
            self._file = None

    def last_lines(self, count: int) -> tuple[str, ...]:
        """The last lines that say something."""
        lines = self._tail.decode(errors="replace").splitlines()
        return tuple(line.rstrip() for line in lines if line.strip())[-count:]

    def _to_file(self, chunk: bytes) -> None:
        if self._file and chunk:
            try:
                self._file.write(chunk)
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.problem = f"{self.path}: the log is not whole: {error.strerror}"
        if self._file:
            self._file.close()
            self._file = None
