"""Where a sweep keeps its records, and what of an earlier part of it may be used again.

Nothing is ever deleted but what a killed process left half-written, which has an ending of its own. A record of which
nothing can be used is set aside under another ending, so that it stands in no table.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from benchmarker.core.errors import ResultsError, read_problem
from benchmarker.execution.job_file import is_job_file
from benchmarker.schema.base import Plain, first_problem
from benchmarker.schema.collect import SWEEP_FILE
from benchmarker.schema.job import Job
from benchmarker.schema.record import CellBase, RunRecord
from benchmarker.schema.record_io import UNFINISHED, is_of_older_schema, read_record, write_atomically, write_record

SET_ASIDE = ".set-aside"
UNWATCHED = "nobody saw how the board was while it was measured"

CellId = tuple[int, str, int]
"""Round, variant, and the cell's position in the grid."""


class SweepFile(Plain):
    """What a sweep was asked to do, for `--resume` and for readers."""

    sweep_version: Literal[1] = 1
    config: str
    arguments: tuple[str, ...]
    """Names of variants, and options of every run."""
    rounds: int
    max_rounds: int | None = None
    """Rounds are added up to these while an interval is wide; None for none."""
    seed: int
    """Of the order."""
    started_at: str
    """ISO 8601, UTC."""
    baseline: str | None = None
    """The variant that the others are compared with. None in a file from before this was kept."""


@dataclass(frozen=True)
class ReusableCells:
    """What a sweep's folder holds that need not be measured again."""

    finished: Mapping[CellId, CellBase]
    """The cells that were measured and need not be measured again."""
    profiled: frozenset[str]
    """Variants with a profile."""
    notes: tuple[str, ...]
    """What a user should know: one line for each file that cannot be used, or only in part."""


def read_sweep_file(folder: Path) -> SweepFile | None:
    """The sweep in this folder; None if there is none.

    Raises:
        ResultsError: The file is there, and is not one.
    """
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
    """Save what the sweep is asked to do.

    Raises:
        ResultsError: The file cannot be written.
    """
    write_atomically(folder / SWEEP_FILE, sweep.model_dump_json(indent=1) + "\n")


def latest_sweep(results: Path, config: Path) -> Path | None:
    """The last sweep of this config in `results/<device>/<model>`; None if there is none."""
    sweeps = []
    for path in results.glob(f"*/*/*/{SWEEP_FILE}"):
        with contextlib.suppress(ResultsError):
            sweep = read_sweep_file(path.parent)
            if sweep and Path(sweep.config).resolve() == config.resolve():
                sweeps.append((sweep.started_at, path.parent))
    return max(sweeps)[1] if sweeps else None


def find_reusable(
    folder: Path,
    jobs: Mapping[str, Job],
    keys: Mapping[str, Sequence[str]],
    *,
    rounds: int,
    card: str | None,
    is_watched: bool,
) -> ReusableCells:
    """Find the finished cells that can be used, and set aside the records that cannot.

    Args:
        keys: The keys of each variant's cells, by position in the grid.
        card: The device's UUID; None where it has none.
        is_watched: Whether the board can be read. Then a cell must say how it was: one that does not is of a sweep
            that was killed before it could judge it.

    Raises:
        ResultsError: A record cannot be renamed or rewritten.
    """
    sweep_up(folder)
    notes: list[str] = []
    used: list[tuple[Path, RunRecord, dict[int, CellBase]]] = []
    for path, record in records_in(folder, notes):
        # Other variants and later rounds are no business of this part of the sweep; they stay.
        if record.variant.name in jobs and record.round < rounds:
            used.append((path, record, _usable(record, jobs, keys, is_watched=is_watched)))
    split = _rounds_split_by_card(used, keys, rounds=rounds, card=card)
    cells_done: dict[CellId, CellBase] = {}
    profiled: set[str] = set()
    older = 0
    for path, record, cells in used:
        if record.cells and not cells and is_of_older_schema(path):
            older += 1
        elif record.round in split and record.environment.device.uuid != card:
            notes.append(
                f"{path}: not used: measured on another card, and its round is not whole; set aside as "
                f"{path.name}{SET_ASIDE}"
            )
        elif cells:
            cells_done |= {(record.round, record.variant.name, position): cell for position, cell in cells.items()}
            if record.profile:
                profiled.add(record.variant.name)
            after = _closed(record, is_watched=is_watched)
            if after != record:
                write_record(after, path)
            continue
        elif record.cells and all(
            cell.error_kind == "disturbed" and cell.key in keys[record.variant.name] for cell in record.cells
        ):
            # It was measured again since, or will be now. It says why, and may have the profile.
            if record.profile:
                profiled.add(record.variant.name)
            continue
        elif record.cells:
            why = _why_not(record, is_watched=is_watched)
            notes.append(f"{path}: not used: {why}; set aside as {path.name}{SET_ASIDE}")
        path.rename(path.with_name(path.name + SET_ASIDE))
    if older:
        notes.append(
            f"{folder}: not used: {older} {'record' if older == 1 else 'records'} of an older schema, whose cells have "
            f"other keys; set aside as *.json{SET_ASIDE}, and measured again"
        )
    return ReusableCells(cells_done, frozenset(profiled), tuple(notes))


def sweep_up(folder: Path) -> None:
    """Remove what a killed process left half-written under a temporary name; the lock is ours, so nobody writes."""
    for path in folder.glob(f".*{UNFINISHED}"):
        with contextlib.suppress(OSError):
            os.unlink(path)


def records_in(folder: Path, notes: list[str]) -> Iterator[tuple[Path, RunRecord]]:
    """Every record of a sweep's folder; a line in the notes for each that cannot be read."""
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
    """The record as its sweep would have left it, had that not been killed."""
    cells = tuple(
        cell.model_copy(update={"status": "invalid", "error_kind": "unwatched", "reason": UNWATCHED})
        if is_watched and _is_unwatched(cell)
        else cell
        for cell in record.cells
    )
    status = "interrupted" if record.status == "running" else record.status
    return record.model_copy(update={"cells": cells, "status": status})


def _is_unwatched(cell: CellBase) -> bool:
    """Whether it counts as measured, and nobody saw how the board was meanwhile."""
    return cell.status == "ok" and cell.conditions is None


def _usable(
    record: RunRecord, jobs: Mapping[str, Job], keys: Mapping[str, Sequence[str]], *, is_watched: bool
) -> dict[int, CellBase]:
    """Its cells that are ok, whole, and what would be measured now, by position."""
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


def _rounds_split_by_card(
    used: Sequence[tuple[Path, RunRecord, Mapping[int, CellBase]]],
    keys: Mapping[str, Sequence[str]],
    *,
    rounds: int,
    card: str | None,
) -> set[int]:
    """Rounds that another card of the same kind began and did not finish.

    Two cards of a kind differ by more than many variants do. Variants are compared within a round, which cancels that
    as long as a round is measured on one card.
    """
    cards: dict[int, dict[str | None, set[tuple[str, int]]]] = defaultdict(lambda: defaultdict(set))
    for _, record, cells in used:
        cards[record.round][record.environment.device.uuid] |= {(record.variant.name, position) for position in cells}
    whole = sum(map(len, keys.values()))
    return {
        number
        for number in range(rounds)
        if any(uuid != card and len(cells) < whole for uuid, cells in cards[number].items())
    }


def _why_not(record: RunRecord, *, is_watched: bool) -> str:
    if is_watched and any(map(_is_unwatched, record.cells)):
        return UNWATCHED
    if not any(cell.status == "ok" for cell in record.cells):
        return "it has no finished cell"
    return "measured under other circumstances (model, options, procedure, device or versions)"
