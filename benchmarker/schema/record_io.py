"""Records on disk: written in one step, so that a file is complete or absent, and read with one line for any defect."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmarker.core.errors import ResultsError, did_you_mean, read_problem, write_problem
from benchmarker.schema.base import first_problem
from benchmarker.schema.record import SCHEMA_VERSION, RunRecord
from benchmarker.schema.registry import WORKLOADS, workload_of

UNFINISHED = ".benchmarker.tmp"
"""Ending of a file that is being written. A resumed sweep removes such files only."""


def write_record(record: RunRecord, path: Path) -> None:
    """Replace the file in one step, so that a reader never sees half a record.

    Raises:
        ResultsError: The folder cannot be written to, or the disk is full. The old file is unchanged.
    """
    write_atomically(path, record.model_dump_json(indent=1) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write a file beside `path`, flush it to the disk, and rename it.

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
        reason = write_problem(error, remedy="choose another folder with --output")
        raise ResultsError(f"{path}: not saved: {reason}") from error


def _sync_folder(folder: Path) -> None:
    """Make the rename durable: a file system may keep a folder's entries in memory."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_record(path: Path) -> RunRecord:
    """Read one record of its workload's class.

    Raises:
        ResultsError: Not a record, truncated, edited into something invalid, or of another schema.
    """
    return parse_record(read_bytes(path), path)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file. Raises ResultsError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ResultsError(read_problem(path, error)) from error


def parse_record(text: bytes, path: Path) -> RunRecord:
    """Return the record in a file's content. Raises ResultsError, as `read_record`."""
    data = parse_json(text, path)
    kind = _class_of(data, path)
    try:
        return kind.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise ResultsError(f"{path}: {first_problem(error, kind)}") from error


def parse_json(text: bytes, path: Path) -> dict[str, Any]:
    """Return a record's content as JSON. Raises ResultsError, as `read_record`."""
    try:
        data: Any = json.loads(text)
    except ValueError as error:
        raise ResultsError(f"{path}: not valid JSON ({error}); it may have been cut short") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise ResultsError(f"{path}: not a benchmarker record (no schema_version)")
    if version < 1:
        raise ResultsError(f"{path}: there is no schema {version}; it was edited")
    if version > SCHEMA_VERSION:
        raise ResultsError(
            f"{path}: schema {version} is newer than this benchmarker's {SCHEMA_VERSION}; upgrade benchmarker"
        )
    if version < SCHEMA_VERSION:
        raise ResultsError(f"{path}: schema {version} is not read any more; run the command again")
    return dict(data)


def _class_of(data: dict[str, Any], path: Path) -> type[RunRecord]:
    name = data.get("workload")
    if not isinstance(name, str):
        raise ResultsError(f"{path}: workload: it names none; it was edited")
    if name not in WORKLOADS:
        raise ResultsError(f"{path}: workload: this benchmarker has no '{name}'{did_you_mean(name, WORKLOADS)}")
    return workload_of(name).record
