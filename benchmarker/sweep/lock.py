"""Lock on a sweep's folder: two sweeps at once would mix their records and disturb each other's measurements.

The operating system frees the lock when its owner dies. A second file holds the owner's name, so that the error message
can identify the process that holds the folder.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from benchmarker.core.errors import ResultsError

LOCK = ".lock"
OWNER = ".lock-owner"
"""File with the owner's name, such as `process 4711 on node3`."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder; create it if needed.

    Raises:
        ResultsError: Another sweep holds the folder, or it cannot be written to.
    """
    owner_path = folder / OWNER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        lock.acquire(timeout=0)
        owner_path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
    except Timeout as error:
        raise ResultsError(
            f"{folder}: another sweep{_owner(owner_path)} is writing there; "
            "wait for it, or choose another folder with --output"
        ) from error
    except OSError as error:
        raise ResultsError(
            f"{folder}: results cannot be written there ({error.strerror}); choose another folder with --output"
        ) from error
    try:
        yield
    finally:
        owner_path.unlink(missing_ok=True)
        lock.release()


def _owner(path: Path) -> str:
    """Return ` (process 4711)`, with the host if it is another one; an empty text if the file is missing."""
    with contextlib.suppress(OSError):
        owner = path.read_text(encoding="utf-8").removesuffix(f" on {socket.gethostname()}")
        return f" ({owner})" if owner else ""
    return ""
