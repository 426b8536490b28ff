"""Which rounds of a sweep's folder are whole. A sweep over places goes on with those, and measures the others anew.

A round is measured on one card. Where one is not whole, its card may not be had again, so that its records are set
aside, and do not stand in a row beside another card's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarker.schema.job import Job
from benchmarker.schema.record import RunRecord
from benchmarker.sweep.folder import SET_ASIDE, records_in

Files = Sequence[tuple[Path, RunRecord]]


@dataclass(frozen=True)
class WholeRounds:
    """What a folder holds."""

    records: tuple[RunRecord, ...]
    """Of the rounds that are whole."""
    rounds: frozenset[int]
    notes: tuple[str, ...]


def whole_rounds(
    folder: Path, jobs: Mapping[str, Job], keys: Mapping[str, Sequence[str]], *, rounds: int
) -> WholeRounds:
    """Find the rounds in which every variant was measured, or failed; set the others' records aside.

    Args:
        keys: Of each variant's cells, by position.
    """
    notes: list[str] = []
    files: dict[int, list[tuple[Path, RunRecord]]] = defaultdict(list)
    for path, record in records_in(folder, notes):
        if record.variant.name in jobs and record.round < rounds:
            files[record.round].append((path, record))
    hopeless = {record.variant.name for members in files.values() for _, record in members if _has_failed(record)}
    whole = frozenset(number for number, members in files.items() if _is_whole(members, jobs, keys, hopeless))
    for number in sorted(set(files) - whole):
        for path, _ in files[number]:
            path.rename(path.with_name(path.name + SET_ASIDE))
        notes.append(
            f"{folder}: round {number + 1} is not whole, or was measured under other circumstances; it is measured "
            f"again, and its records are set aside as *.json{SET_ASIDE}"
        )
    records = tuple(record for number in sorted(whole) for _, record in files[number])
    return WholeRounds(records, whole, tuple(notes))


def _is_whole(
    members: Files, jobs: Mapping[str, Job], keys: Mapping[str, Sequence[str]], hopeless: Collection[str]
) -> bool:
    """Whether all of a round is there, from one card.

    Args:
        hopeless: Variants of which something was given up, which later rounds do not try again.
    """
    cards = {record.environment.device.uuid for _, record in members}
    return len(cards) == 1 and all(
        _is_settled([record for _, record in members if record.variant.name == name], job, keys[name], name in hopeless)
        for name, job in jobs.items()
    )


def _is_settled(records: Sequence[RunRecord], job: Job, keys: Sequence[str], is_hopeless: bool) -> bool:
    """Whether every cell of a variant is measured as it would be now, or given up."""
    cells = [cell for record in records for cell in record.cells]
    good = {cell.key for cell in cells if cell.status == "ok" and len(cell.samples) == job.procedure.runs}
    is_over = all(record.status in ("complete", "failed") for record in records)
    return good >= set(keys) or (is_hopeless and is_over and good <= set(keys))


def _has_failed(record: RunRecord) -> bool:
    return record.status == "failed" or any(cell.status != "ok" for cell in record.cells)
