"""Speed of one variant over its saved runs: a table for each device and cell, with a row for each sweep."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from benchmarker.comparison.results import make_row
from benchmarker.comparison.rows import CellKey, Row, cell_words, keys_of, shown_value
from benchmarker.core.errors import ResultsError, near_miss
from benchmarker.core.formatting import MISSING, plural
from benchmarker.core.tables import Column, Sheet, plain_line
from benchmarker.schema.record import DISTURBING, RunRecord
from benchmarker.schema.record_io import Collected

DATE_LENGTH = 16
COMMIT_LENGTH = 7


@dataclass(frozen=True)
class Past:
    """Row of a variant in one saved sweep and cell, with the first record of the sweep."""

    row: Row
    record: RunRecord
    folder: Path


def history_sheets(collected: Collected, variant: str) -> list[Sheet]:
    """Return a table for each device and cell, the oldest run first. Raises ResultsError for an unknown variant."""
    runs: dict[tuple[str, str], list[tuple[Path, RunRecord]]] = defaultdict(list)
    for path, record in collected.files:
        if record.variant.name == variant:
            runs[record.workload, record.sweep or record.run_id].append((path, record))
    if not runs:
        near = near_miss(variant, {record.variant.name for record in collected.records})
        hint = f"did you mean '{near}'?" if near else "`benchmarker history` lists the variants"
        raise ResultsError(f"history {variant}: no record of that variant; {hint}")
    groups: dict[tuple[str, CellKey], list[Past]] = defaultdict(list)
    for members in runs.values():
        records = sorted((record for _, record in members), key=lambda record: record.started_at)
        model = getattr(getattr(records[0], "model", None), "id", "")
        subject = ", ".join(filter(None, map(plain_line, (model, records[0].environment.device.name))))
        for key in dict.fromkeys(key for record in records for key in keys_of(record)):
            row = make_row(variant, key, records)
            if row.pace:
                groups[subject, key].append(Past(row, records[0], members[0][0].parent))
    return [_sheet(subject, key, groups[subject, key]) for subject, key in sorted(groups)]


def variants_sheet(collected: Collected) -> Sheet:
    runs: dict[str, dict[str, str]] = defaultdict(dict)
    for record in collected.records:
        dates = runs[record.variant.name]
        sweep = record.sweep or record.run_id
        dates[sweep] = max(dates.get(sweep, ""), record.started_at)
    columns = [
        Column[str]("variant", lambda name: name, "left"),
        Column[str]("runs", lambda name: str(len(runs[name])), sort=lambda name: len(runs[name])),
        Column[str]("newest", lambda name: _minute(max(runs[name].values())), "left"),
    ]
    return Sheet("Variants with saved runs (benchmarker history VARIANT)", columns, sorted(runs))


def _minute(time: str) -> str:
    return time[:DATE_LENGTH].replace("T", " ")


def _disturbances(past: Past) -> str:
    return ", ".join(flag.replace("_", " ") for flag in past.row.flags if flag in DISTURBING)


def _sheet(subject: str, key: CellKey, runs: list[Past]) -> Sheet:
    metric = runs[0].row.ranking
    columns = [
        Column[Past]("when", lambda past: _minute(past.record.started_at), "left"),
        Column[Past](
            metric.heading,
            lambda past: past.row.pace_spread,
            sort=lambda past: shown_value(past.row.pace),
            is_more_better=metric.better == "higher",
        ),
        Column[Past]("processes", lambda past: str(past.row.processes), sort=lambda past: past.row.processes),
        Column[Past]("torch", lambda past: past.record.environment.packages.get("torch", MISSING), "left"),
        Column[Past]("commit", lambda past: (past.record.environment.commit or MISSING)[:COMMIT_LENGTH], "left"),
        Column[Past]("folder", lambda past: str(past.folder), "left"),
    ]
    if any(map(_disturbances, runs)):
        columns.insert(2, Column[Past]("conditions", _disturbances, "left"))
    title = f"{runs[0].row.variant} at {cell_words(key)}: {subject}, {plural(len(runs), 'run', 'runs')}"
    return Sheet(title, columns, sorted(runs, key=lambda past: past.record.started_at))
