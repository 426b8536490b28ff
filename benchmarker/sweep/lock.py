"""One sweep at a time in a folder: two at once would also disturb each other's measurements.

The lock is a file that names its owner. A process id comes back after a while, so the owner's start time stands
beside it: a lock whose owner is dead holds nothing, and is taken over.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from pydantic import ValidationError

from benchmarker.core.errors import ResultsError
from benchmarker.schema.base import Plain

LOCK = ".lock"
START_TOLERANCE_S = 2.0
"""A process's start time is counted from the system's, which a corrected clock may move."""


class Owner(Plain):
    """The process that holds a lock."""

    pid: int
    started_s: float
    """Unix time."""
    host: str

    def is_alive(self) -> bool:
        """Whether that very process runs; taken to be so on another host, where nobody can look."""
        if self.host != socket.gethostname():
            return True
        try:
            started_s = psutil.Process(self.pid).create_time()
        except psutil.Error:
            return False
        return abs(started_s - self.started_s) < START_TOLERANCE_S


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder, which is made if it is not there.

    Raises:
        ResultsError: Another sweep holds it, or nothing can be written there.
    """
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone_with(path) as handle:
            owner = _owner(handle)
            if owner and owner.is_alive():
                raise ResultsError(_refusal(folder, owner))
            me = psutil.Process()
            own = Owner(pid=me.pid, started_s=me.create_time(), host=socket.gethostname())
            os.ftruncate(handle, 0)
            os.pwrite(handle, own.model_dump_json().encode(), 0)
            os.fsync(handle)
    except OSError as error:
        raise ResultsError(
            f"{folder}: results cannot be written there ({error.strerror}); choose another folder with --output"
        ) from error
    try:
        yield
    finally:
        with _alone_with(path):
            path.unlink(missing_ok=True)


@contextmanager
def _alone_with(path: Path) -> Iterator[int]:
    """The file's descriptor, while no other process may look at it: two must not both find a dead owner."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_still(path, handle):
                yield handle
                return
        finally:
            os.close(handle)


def _is_still(path: Path, handle: int) -> bool:
    """Whether the path leads to this file: its last owner may have removed it while we waited."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _owner(handle: int) -> Owner | None:
    """Who the file names; None if it is new, or was cut short by a crash."""
    try:
        return Owner.model_validate_json(os.pread(handle, 4096, 0))
    except ValidationError:
        return None


def _refusal(folder: Path, owner: Owner) -> str:
    if owner.host != socket.gethostname():
        return (
            f"{folder}: process {owner.pid} on {owner.host} holds this folder; "
            f"if it no longer runs there, delete {folder / LOCK}"
        )
    return (
        f"{folder}: another sweep (process {owner.pid}) is writing there; wait for it, or choose another with --output"
    )
