"""Files and lock of a sweep's folder, and the rule by which `--resume` reuses the records in the folder.

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
from typing import TYPE_CHECKING, Literal

from filelock import FileLock, Timeout
from pydantic import ValidationError

from benchmarker.core.errors import ResultsError, read_problem
from benchmarker.execution.jobs import refuse_changed, write_job
from benchmarker.schema.base import Plain, first_problem
from benchmarker.schema.config_io import find_config
from benchmarker.schema.job import Job
from benchmarker.schema.record import CellBase, RunRecord
from benchmarker.schema.record_io import LOCK_OWNER, SWEEP_FILE, UNFINISHED, read_record, record_paths, write_json
from benchmarker.sweep.retries import DISTURBED

if TYPE_CHECKING:
    from benchmarker.sweep.request import SweepRequest
    from benchmarker.sweep.sweep_state import Sweep

LOCK = ".lock"
SET_ASIDE = ".set-aside"
UNWATCHED = "the GPU's clocks and temperature were not read while it was measured"

CellId = tuple[int, str, int]
"""Round, variant, and the cell's position in the grid."""


class KeptSettings(Plain):
    """Settings that a resumed sweep keeps, unless other values are given."""

    load_timeout_s: float
    cell_timeout_s: float | None
    allow_shared: bool
    shared_imports: bool
    places: str | None
    runtime_env: Path | None


class SweepFile(Plain):
    """Content of sweep.json: the request of a sweep, for `--resume` and for readers."""

    sweep_version: Literal[1] = 1
    config: str
    arguments: tuple[str, ...]
    variants: tuple[str, ...] = ()
    """Names of the measured variants. Empty in older files."""
    rounds: int
    max_rounds: int | None = None
    seed: int
    started_at: str
    baseline: str | None = None
    """Variant that the others are compared with. None in older files."""
    settings: KeptSettings | None = None
    """None in older files."""

    def is_of(self, config: Path) -> bool:
        """Return whether the sweep measures this config; `quickstart` and `configs/quickstart.yaml` are the same."""
        return find_config(Path(self.config)).resolve() == find_config(config).resolve()


@dataclass(frozen=True)
class ReusableCells:
    finished: Mapping[CellId, CellBase]
    cards: Mapping[int, str | None]
    """GPU of each round that is partly measured; the same GPU has to measure the rest of the round."""
    profiled: frozenset[str]
    records: Sequence[RunRecord]
    notes: Sequence[str]
    """One line for each file that cannot be used, or only in part."""


@dataclass(frozen=True)
class FoundRecord:
    path: Path
    record: RunRecord
    """The record as its sweep would have completed it if it had not been killed."""
    cells: Mapping[int, CellBase]
    """Complete, valid cells with a key of the present sweep, by position."""

    @property
    def card(self) -> str | None:
        """UUID of the GPU, or the worker's name if the GPU has none."""
        return self.record.environment.device.uuid or self.record.place


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    owner_path, owner = folder / LOCK_OWNER, ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        lock.acquire(timeout=0)
        owner_path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
    except Timeout as error:
        with contextlib.suppress(OSError):
            owner = owner_path.read_text(encoding="utf-8").removesuffix(f" on {socket.gethostname()}")
        reason = f"another sweep{f' ({owner})' if owner else ''} is writing there; wait for it, or"
        raise ResultsError(f"{folder}: {reason} choose another folder with --output") from error
    except OSError as error:
        reason = f"results cannot be written there ({error.strerror})"
        raise ResultsError(f"{folder}: {reason}; choose another folder with --output") from error
    try:
        yield
    finally:
        owner_path.unlink(missing_ok=True)
        lock.release()


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


def latest_sweep(results: Path, config: Path) -> Path | None:
    """Find the last sweep of this config in `results/<device>/<model>`; None if there is none."""
    sweeps = []
    for path in results.glob(f"*/*/*/{SWEEP_FILE}"):
        with contextlib.suppress(ResultsError):
            if (sweep := read_sweep_file(path.parent)) and sweep.is_of(config):
                sweeps.append((sweep.started_at, path.parent))
    return max(sweeps)[1] if sweeps else None


def open_folder(request: SweepRequest, folder: Path, jobs: Mapping[str, Job]) -> None:
    """Check that the folder belongs to this sweep, and save the request and the jobs in it; raises ResultsError."""
    if not request.settings.resume and ((folder / SWEEP_FILE).exists() or record_paths(folder)):
        remedy = "add --resume to resume that sweep, or choose another folder with --output"
        raise ResultsError(f"{folder}: there are records already; {remedy}")
    refuse_changed(request.saved, list(jobs.values()))
    for job in jobs.values():
        if job not in request.saved:
            write_job(job, folder)
    # Written last, because a sweep can be resumed if this file exists.
    if request.file != request.before:
        write_json(request.file, folder / SWEEP_FILE)


def find_reusable(sweep: Sweep, *, rounds: int, cards: Collection[str | None], is_watched: bool) -> ReusableCells:
    """Find the finished cells that can be used, and set aside the records that cannot.

    Two GPUs of the same type differ by more than many variants do, so a single GPU measures each round. A round that
    another GPU began and did not finish is measured again if no worker has that GPU. If `is_watched`, a cell without
    the GPU's state is not used: the sweep was killed before it could judge the cell.
    """
    notes: list[str] = []
    found = list(_records_in(sweep, rounds, notes, is_watched=is_watched))
    own_cards, foreign = _incomplete_rounds(found, sum(len(job.grid.points()) for job in sweep.jobs.values()), cards)
    finished: dict[CellId, CellBase] = {}
    profiled: set[str] = set()
    for candidate in found:
        path, record, cells = candidate.path, candidate.record, candidate.cells
        name, keys = record.variant.name, _keys(sweep, record)
        is_foreign = (record.round, candidate.card) in foreign
        if is_foreign:
            reason = "measured on another card, and its round is incomplete"
        elif cells:
            profiled |= {name} if record.profile else set()
            finished |= {(record.round, name, position): cell for position, cell in cells.items()}
            continue
        elif record.cells and all(cell.error_kind in DISTURBED and cell.key in keys for cell in record.cells):
            # The cells were measured again since, or will be now. The record keeps the reason.
            continue
        elif any(cell.error_kind == "unwatched" for cell in record.cells):
            reason = UNWATCHED
        elif not any(cell.status == "ok" for cell in record.cells):
            reason = "it has no finished cell"
        else:
            reason = "measured under other circumstances (model, options, procedure, imports, device or versions)"
        if record.cells or is_foreign:
            notes.append(f"{path}: not used: {reason}; set aside as {path.name}{SET_ASIDE}")
        path.rename(path.with_name(path.name + SET_ASIDE))
    records = [candidate.record for candidate in found if candidate.cells or candidate.record.is_disturbed]
    return ReusableCells(finished, own_cards, frozenset(profiled), records, notes)


def _keys(sweep: Sweep, record: RunRecord) -> tuple[str, ...]:
    origin = sweep.jobs[record.variant.name].origin
    return origin.keys if origin and record.forked == sweep.settings.shared_imports else ()


def _records_in(sweep: Sweep, rounds: int, notes: list[str], *, is_watched: bool) -> Iterator[FoundRecord]:
    """Yield the sweep's records; add a line to the notes for each that cannot be read, and remove unfinished files."""
    # The folder is locked, so that no other process writes.
    for path in sweep.folder.glob(f".*{UNFINISHED}"):
        with contextlib.suppress(OSError):
            path.unlink()
    for path in record_paths(sweep.folder):
        try:
            saved = read_record(path)
        except ResultsError as error:
            notes.append(f"{error}; the rest is used")
            continue
        # Records of other variants and of later rounds stay as they are.
        if saved.variant.name not in sweep.jobs or saved.round >= rounds:
            continue
        unwatched = {"status": "invalid", "error_kind": "unwatched", "reason": UNWATCHED}
        cells = [
            cell.model_copy(update=unwatched) if is_watched and cell.status == "ok" and not cell.conditions else cell
            for cell in saved.cells
        ]
        status = "interrupted" if saved.status == "running" else saved.status
        record = saved.model_copy(update={"cells": tuple(cells), "status": status})
        positions = {key: position for position, key in enumerate(_keys(sweep, record))}
        runs = sweep.jobs[saved.variant.name].procedure.runs
        valid = (cell for cell in cells if cell.status == "ok" and len(cell.samples) == runs)
        usable = {positions[cell.key]: cell for cell in valid if cell.key in positions}
        if usable and record != saved:
            write_json(record, path)
        yield FoundRecord(path, record, usable)


def _incomplete_rounds(
    found: Sequence[FoundRecord], total: int, cards: Collection[str | None]
) -> tuple[dict[int, str | None], set[tuple[int, str | None]]]:
    """Return the GPU that continues each round of less than `total` cells, and each (round, GPU) to measure again."""
    cells_of: dict[int, dict[str | None, set[tuple[str, int]]]] = defaultdict(lambda: defaultdict(set))
    for candidate in found:
        cells = {(candidate.record.variant.name, position) for position in candidate.cells}
        cells_of[candidate.record.round][candidate.card] |= cells
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
