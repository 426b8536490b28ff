"""Fingerprints of the files that a job reads, to detect changes during a sweep.

The fingerprint of a file of up to 64 MiB is the SHA-256 of its content, which makes a copy equal to its original. A
larger file (a shard of weights) would take seconds to read in each process: its size, its time of change, and its first
and last MiB are used. The first holds the header of a safetensors file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

WHOLE_BYTES = 64 << 20
END_BYTES = 1 << 20
NOT_THERE = "not there"


def changed_inputs(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names whose fingerprint changed, those that appeared included."""
    return [name for name, fingerprint in now.items() if before.get(name, NOT_THERE) != fingerprint]


def folder_fingerprint(folder: Path, endings: Sequence[str]) -> str:
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in endings and path.is_file():
            total.update(f"{path.name} {fingerprint(path)}\n".encode())
    return total.hexdigest()


def fingerprint(path: Path) -> str:
    try:
        with path.open("rb") as file:
            status = path.stat()
            if status.st_size <= WHOLE_BYTES:
                return hashlib.file_digest(file, "sha256").hexdigest()
            total = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns} ".encode())
            total.update(file.read(END_BYTES))
            file.seek(-END_BYTES, 2)
            total.update(file.read())
            return total.hexdigest()
    except OSError:
        return NOT_THERE
