"""Files of a sweep's folder, its lock, and the rule by which `--resume` uses the records in it again.

Two sweeps at once would mix their records and disturb each other's measurements. The operating system frees the lock
when its owner dies.

Nothing is ever deleted except half-written files of a killed process, which have an ending of their own. Records that
cannot be used are renamed, so that they appear in no table.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout
from pydantic import ValidationError

from benchmarker.core.errors import ResultsError, read_problem
from benchmarker.execution.job_file import is_job_file, refuse_changed, write_job
from benchmarker.schema.base import Plain, first_problem
from benchmarker.schema.job import Job
from benchmarker.schema.record import CellBase, RunRecord
from benchmarker.schema.record_io import SWEEP_FILE, UNFINISHED, read_record, write_atomically, write_record

LOCK = ".lock"
OWNER = ".lock-owner"
"""File with the owner's name, such as `process 4711 on node3`."""
SET_ASIDE = ".set-aside"
UNWATCHED = "the GPU's clocks and temperature were not read while it was measured"

CellId = tuple[int, str, int]
"""Round, variant, and the cell's position in the grid."""


class SweepFile(Plain):
    """Request of a sweep, for `--resume` and for readers."""

    sweep_version: Literal[1] = 1
    config: str
    arguments: tuple[str, ...]
    variants: tuple[str, ...] = ()
    """Names of the measured variants. Empty in older files."""
    rounds: int
    max_rounds: int | None = None
    """Rounds are added up to this number while an interval is wide; None for no added rounds."""
    seed: int
    started_at: str
    baseline: str | None = None
    """Variant that the others are compared with. None in older files."""


@dataclass(frozen=True)
class ReusableCells:
    """Content of a sweep's folder that need not be measured again."""

    finished: Mapping[CellId, CellBase]
    cards: Mapping[int, str | None]
    """Card of each round that is partly measured; the same card has to measure the rest."""
    profiled: frozenset[str]
    notes: tuple[str, ...]
    """One line for each file that cannot be used, or only in part."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder; create it if needed."""
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


def read_sweep_file(folder: Path) -> SweepFile | None:
    path = folder / SWEEP_FILE
    try:
        return SweepFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ResultsError(read_problem(path, error)) from error
    except ValidationError as error:
        raise ResultsError(f"{path}: {first_problem(error, SweepFile)}") from error


def write_sweep_file(folder: Path, sweep: SweepFile) -> None:
    write_atomically(folder / SWEEP_FILE, sweep.model_dump_json(indent=1) + "\n")


def latest_sweep(results: Path, config: Path) -> Path | None:
    """Find the last sweep of this config in `results/<device>/<model>`; None if there is none."""
    sweeps = []
    for path in results.glob(f"*/*/*/{SWEEP_FILE}"):
        with contextlib.suppress(ResultsError):
            sweep = read_sweep_file(path.parent)
            if sweep and Path(sweep.config).resolve() == config.resolve():
                sweeps.append((sweep.started_at, path.parent))
    return max(sweeps)[1] if sweeps else None


def open_folder(
    folder: Path,
    sweep: SweepFile,
    jobs: Mapping[str, Job],
    *,
    before: SweepFile | None,
    saved: Sequence[Job],
    resume: bool,
) -> None:
    """Check that the folder belongs to this sweep, and save the request in it.

    Args:
        jobs: Jobs with origins.
        before: File that the folder holds from an earlier part of the sweep.
        saved: Jobs that the folder holds from an earlier part of the sweep.

    Raises:
        ResultsError: The folder holds other records, or the model has changed since the sweep began.
    """
    if not resume and any(not is_job_file(path) for path in folder.glob("*.json")):
        raise ResultsError(
            f"{folder}: there are records already; add --resume to resume that sweep, "
            "or choose another folder with --output"
        )
    refuse_changed(saved, list(jobs.values()))
    for job in jobs.values():
        if job not in saved:
            write_job(job, folder)
    # Last, because this file makes the folder one of a sweep that can be resumed.
    if sweep != before:
        write_sweep_file(folder, sweep)


def find_reusable(
    folder: Path,
    jobs: Mapping[str, Job],
    keys: Mapping[str, Sequence[str]],
    *,
    rounds: int,
    cards: Collection[str | None],
    is_watched: bool,
) -> ReusableCells:
    """Find the finished cells that can be used, and set aside the records that cannot.

    Two cards of one model differ by more than many variants do. Comparing variants within a round cancels the
    difference as long as one card measures the entire round.

    Args:
        keys: Keys of each variant's cells, by position in the grid.
        cards: Cards of the workers, as `card_of` names them. An incomplete round of another card is measured again.
        is_watched: Whether the workers read the GPU's state. A cell without it then belongs to a sweep that was killed
            before it could judge the cell.

    Raises:
        ResultsError: A record cannot be renamed or rewritten.
    """
    remove_unfinished(folder)
    notes: list[str] = []
    records: list[tuple[Path, RunRecord, dict[int, CellBase]]] = []
    for path, record in _records_in(folder, notes):
        # Records of other variants and of later rounds stay as they are.
        if record.variant.name in jobs and record.round < rounds:
            records.append((path, record, _usable(record, jobs, keys, is_watched=is_watched)))
    own_cards, foreign = _incomplete_rounds(records, keys, cards)
    finished: dict[CellId, CellBase] = {}
    profiled: set[str] = set()
    for path, record, cells in records:
        name = record.variant.name
        is_foreign = (record.round, card_of(record.environment.device.uuid, record.place)) in foreign
        is_disturbed = bool(record.cells) and all(
            cell.error_kind == "disturbed" and cell.key in keys[name] for cell in record.cells
        )
        if record.profile and not is_foreign and (cells or is_disturbed):
            profiled.add(name)
        if is_foreign:
            notes.append(
                f"{path}: not used: measured on another card, and its round is incomplete; set aside as "
                f"{path.name}{SET_ASIDE}"
            )
        elif cells:
            finished |= {(record.round, name, position): cell for position, cell in cells.items()}
            closed = _closed(record, is_watched=is_watched)
            if closed != record:
                write_record(closed, path)
            continue
        elif is_disturbed:
            # The cells were measured again since, or will be now. The record keeps the reason, and may have a profile.
            continue
        elif record.cells:
            reason = _why_unused(record, is_watched=is_watched)
            notes.append(f"{path}: not used: {reason}; set aside as {path.name}{SET_ASIDE}")
        path.rename(path.with_name(path.name + SET_ASIDE))
    return ReusableCells(finished, own_cards, frozenset(profiled), tuple(notes))


def card_of(uuid: str | None, worker: str | None) -> str | None:
    """Return the identity of a card: its UUID, or the worker's name if it has none."""
    return uuid or worker


def remove_unfinished(folder: Path) -> None:
    """Remove half-written files of a killed process. The folder is locked, so that no other process writes."""
    for path in folder.glob(f".*{UNFINISHED}"):
        with contextlib.suppress(OSError):
            os.unlink(path)


def _records_in(folder: Path, notes: list[str]) -> Iterator[tuple[Path, RunRecord]]:
    """Yield every record of a sweep's folder; add a line to the notes for each that cannot be read."""
    for path in sorted(folder.glob("*.json")):
        if path.name == SWEEP_FILE or is_job_file(path):
            continue
        try:
            record = read_record(path)
        except ResultsError as error:
            notes.append(f"{error}; the rest is used")
            continue
        yield path, record


def _closed(record: RunRecord, *, is_watched: bool) -> RunRecord:
    """Return the record as its sweep would have completed it if it had not been killed."""
    cells = tuple(
        cell.model_copy(update={"status": "invalid", "error_kind": "unwatched", "reason": UNWATCHED})
        if is_watched and _is_unwatched(cell)
        else cell
        for cell in record.cells
    )
    status = "interrupted" if record.status == "running" else record.status
    return record.model_copy(update={"cells": cells, "status": status})


def _is_unwatched(cell: CellBase) -> bool:
    return cell.status == "ok" and cell.conditions is None


def _usable(
    record: RunRecord, jobs: Mapping[str, Job], keys: Mapping[str, Sequence[str]], *, is_watched: bool
) -> dict[int, CellBase]:
    """Return the complete, valid cells that would be measured in the same way now, by position."""
    name = record.variant.name
    runs = jobs[name].procedure.runs
    positions = {key: position for position, key in enumerate(keys[name])}
    return {
        positions[cell.key]: cell
        for cell in record.cells
        if cell.status == "ok"
        and cell.key in positions
        and len(cell.samples) == runs
        and not (is_watched and _is_unwatched(cell))
    }


def _incomplete_rounds(
    records: Sequence[tuple[Path, RunRecord, Mapping[int, CellBase]]],
    keys: Mapping[str, Sequence[str]],
    cards: Collection[str | None],
) -> tuple[dict[int, str | None], set[tuple[int, str | None]]]:
    """Return the cards that continue their own incomplete rounds, and the rounds of cards that cannot."""
    cells_of: dict[int, dict[str | None, set[tuple[str, int]]]] = defaultdict(lambda: defaultdict(set))
    for _, record, cells in records:
        card = card_of(record.environment.device.uuid, record.place)
        cells_of[record.round][card] |= {(record.variant.name, position) for position in cells}
    total = sum(map(len, keys.values()))
    continued: dict[int, str | None] = {}
    foreign: set[tuple[int, str | None]] = set()
    for number, by_card in cells_of.items():
        for card, measured in by_card.items():
            if card in cards and number not in continued:
                if 0 < len(measured) < total:
                    continued[number] = card
            elif len(measured) < total:
                foreign.add((number, card))
    return continued, foreign


def _why_unused(record: RunRecord, *, is_watched: bool) -> str:
    if is_watched and any(map(_is_unwatched, record.cells)):
        return UNWATCHED
    if not any(cell.status == "ok" for cell in record.cells):
        return "it has no finished cell"
    return "measured under other circumstances (model, options, procedure, device or versions)"


def read_new_records(
    folder: Path, names: Sequence[str], keys: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, int, CellBase]]:
    """Yield the variant, the position and the cell of every cell in these records, except for unreadable files."""
    for path in (folder / name for name in names if name.endswith(".json")):
        with contextlib.suppress(ResultsError):
            record = read_record(path)
            positions = {key: position for position, key in enumerate(keys[record.variant.name])}
            for cell in record.cells:
                if cell.key in positions:
                    yield record.variant.name, positions[cell.key], cell
