"""One sweep at a time in a folder: two at once would also disturb each other's measurements.

The system frees the lock when its owner dies, however it dies. The owner's name stands in a file beside the lock, only
so that a refusal can say who holds the folder.
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
    """Hold the folder, which is made if it is not there.

    Raises:
        ResultsError: Another sweep holds it, or nothing can be written there.
    """
    owner_path = folder / OWNER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        lock.acquire(timeout=0)
        owner_path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
    except Timeout as error:
        raise ResultsError(
            f"{folder}: another sweep{_owner_words(owner_path)} is writing there; "
            "wait for it, or choose another with --output"
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


def _owner_words(path: Path) -> str:
    """` (process 4711)`, with the host where it is another one; empty where the file does not say."""
    with contextlib.suppress(OSError):
        owner = path.read_text(encoding="utf-8").removesuffix(f" on {socket.gethostname()}")
        return f" ({owner})" if owner else ""
    return ""
