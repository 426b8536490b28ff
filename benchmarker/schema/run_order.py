"""Order in which a sweep's processes ran: one JSON line per process, appended by the worker that started it."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from benchmarker.core.errors import ResultsError, read_problem, write_problem
from benchmarker.schema.base import Plain

RUN_ORDER = "order.jsonl"


class OrderLine(Plain):
    """One measuring process of a sweep."""

    round: int
    variant: str
    pid: int
    start: float
    """Unix time in seconds."""
    end: float
    worker: str | None
    """Name of the worker, as `local:1`; None for a sweep without --places."""
    device: str
    """UUID of the device, or its name if it has none."""


def append_order(folder: Path, line: OrderLine) -> None:
    """Append a process to the folder's list; raises ResultsError."""
    append_lines(folder, f"{line.model_dump_json()}\n".encode())


def append_lines(folder: Path, lines: bytes) -> None:
    """Append complete lines in one write, so that processes do not interleave; raises ResultsError."""
    path = folder / RUN_ORDER
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(handle, lines)
        finally:
            os.close(handle)
    except OSError as error:
        reason = write_problem(error, remedy="choose another folder with --output")
        raise ResultsError(f"{path}: not saved: {reason}") from error


def read_order(folder: Path) -> list[OrderLine]:
    """Return the processes of a sweep in the order in which they ended; none if the folder has no such file."""
    path = folder / RUN_ORDER
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ResultsError(read_problem(path, error)) from error
    try:
        return [OrderLine.model_validate_json(line) for line in text.splitlines()]
    except ValidationError as error:
        raise ResultsError(f"{path}: not a list of processes: {error.errors()[0]['msg']}") from error
