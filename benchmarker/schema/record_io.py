"""Records on disk: written in one step, so that a file is whole or not there; read with any defect said in one line."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path

from pydantic import ValidationError

from benchmarker.core.disk_errors import why_not_written
from benchmarker.core.errors import ResultsError
from benchmarker.schema.base import first_problem
from benchmarker.schema.record import SCHEMA_VERSION, RunRecord

UNFINISHED = ".benchmarker.tmp"
"""Ending of what is being written: a sweep that goes on removes such files, and no others."""


def write_record(record: RunRecord, path: Path) -> None:
    """Replace the file at `path` in one step, so that a reader sees the old record or the new one, never half.

    Raises:
        ResultsError: The folder cannot be written to, or the disk is full. The old file is untouched.
    """
    write_atomically(path, record.model_dump_json(indent=1) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write beside `path`, flush to the disk, and rename over it.

    Raises:
        ResultsError: As for `write_record`.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:60]}.", suffix=UNFINISHED)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; a record is as readable as any file the user writes.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        reason = why_not_written(error, elsewhere="choose another folder with --output")
        raise ResultsError(f"{path}: not saved: {reason}") from error


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable (a file system may keep a folder's entries in memory)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_record(path: Path) -> RunRecord:
    """Read one record.

    Raises:
        ResultsError: Not a record, cut short, edited into something invalid, or from a newer benchmarker.
    """
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ResultsError(f"{path}: not valid JSON ({error}); it may have been cut short") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if not isinstance(version, int):
        raise ResultsError(f"{path}: not a benchmarker record (no schema_version)")
    if version < 1:
        raise ResultsError(f"{path}: there is no schema {version}; it was edited")
    if version > SCHEMA_VERSION:
        raise ResultsError(
            f"{path}: schema {version} is newer than this benchmarker's {SCHEMA_VERSION}; upgrade benchmarker"
        )
    try:
        return RunRecord.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise ResultsError(f"{path}: {first_problem(error, RunRecord)}") from error
