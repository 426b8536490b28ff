"""Speed of one variant over its saved runs: tables with a row for each sweep.

Runs that `compare` would refuse to pool are in different tables, or in different rows that show the property.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarker.comparison.comparable import kept_apart
from benchmarker.comparison.results import make_row
from benchmarker.comparison.rows import CellKey, Row, cell_words, keys_of
from benchmarker.core.errors import ResultsError, near_miss
from benchmarker.core.formatting import MISSING, plural
from benchmarker.core.tables import Column, Sheet, Text, plain_line
from benchmarker.report.caveats import COMMIT_LENGTH, shorten
from benchmarker.schema.record import DISTURBING, RunRecord
from benchmarker.schema.record_io import Collected

DATE_LENGTH = 16
File = tuple[Path, RunRecord]


@dataclass(frozen=True)
class Past:
    """Row of a variant in one saved sweep and cell, with the first record of the sweep."""

    row: Row
    record: RunRecord
    folder: Path
    properties: dict[str, str | None]  # Properties in which the rows of the table differ: `{"threads": "2"}`.


def history_sheets(collected: Collected, variant: str) -> list[Sheet]:
    """Return a table for each model, device, form and cell, the oldest run first. Raises ResultsError."""
    names = {record.variant.name for record in collected.records}
    if variant not in names:
        near = near_miss(variant, names)
        hint = f"did you mean '{near}'?" if near else "`benchmarker history` lists the variants"
        raise ResultsError(f"history {variant}: no record of that variant; {hint}")
    groups: dict[tuple[tuple[str, ...], CellKey], list[File]] = defaultdict(list)
    for path, record in sorted(collected.files, key=lambda file: file[1].started_at):
        if record.variant.name == variant:
            subject = (record.workload, record.subject_name, record.environment.device.name, *record.form.values())
            for key, cell in zip(keys_of(record), record.cells, strict=True):
                if cell.status == "ok":
                    groups[subject, key].append((path, record))
    tables = [(subject, list(_pasts(groups[subject, key], key))) for subject, key in sorted(groups)]
    return [_sheet(subject, pasts) for subject, pasts in tables if pasts]


def _pasts(files: Sequence[File], key: CellKey) -> Iterator[Past]:
    runs: dict[str, list[tuple[File, dict[str, str | None]]]] = defaultdict(list)
    for file, properties in zip(files, kept_apart([record for _, record in files], key), strict=True):
        runs[f"{file[1].sweep or file[1].run_id} {properties}"].append((file, properties))
    for run in runs.values():
        (path, first), properties = run[0]
        row = make_row(first.variant.name, key, [record for (_, record), _ in run])
        if row.pace:
            yield Past(row, first, path.parent, properties)


def variants_sheet(collected: Collected) -> Sheet:
    ordered = sorted(collected.records, key=lambda record: record.started_at)
    newest = {record.variant.name: record.started_at for record in ordered}
    runs = Counter(name for name, _ in {(record.variant.name, record.sweep or record.run_id) for record in ordered})
    columns = [
        Column[str]("variant", lambda name: name, "left"),
        Column[str]("runs", lambda name: str(runs[name])),
        Column[str]("newest", lambda name: _minute(newest[name]), "left"),
    ]
    return Sheet("Variants with saved runs (benchmarker history VARIANT)", columns, sorted(runs))


def _minute(time: str) -> str:
    return time[:DATE_LENGTH].replace("T", " ")


def _disturbances(past: Past) -> str:
    return ", ".join(flag.replace("_", " ") for flag in past.row.flags if flag in DISTURBING)


def _property_column(name: str, pasts: Sequence[Past]) -> Column[Past]:
    """Return the column of a property without the parts, separated by commas or semicolons, that all values share."""
    parts = {past.properties[name]: re.split("[,;] ", past.properties[name] or MISSING) for past in pasts}
    shared = set.intersection(*map(set, parts.values()))

    def text(past: Past) -> str:
        differing = ", ".join(part for part in parts[past.properties[name]] if part not in shared)
        return Text(plain_line(differing, longest=300)) or MISSING

    return Column(name, text, "left")


def _sheet(subject: Sequence[str], pasts: Sequence[Past]) -> Sheet:
    row = pasts[0].row
    columns = [
        Column[Past]("when", lambda past: _minute(past.record.started_at), "left"),
        Column[Past](row.ranking.heading, lambda past: past.row.pace_spread),
        Column[Past]("processes", lambda past: str(past.row.processes)),
        *(_property_column(name, pasts) for name in pasts[0].properties if name != "torch"),
        Column[Past]("torch", lambda past: past.record.environment.packages.get("torch", MISSING), "left"),
        Column[Past]("commit", lambda past: shorten(past.record.environment.commit or MISSING, COMMIT_LENGTH), "left"),
        Column[Past]("folder", lambda past: str(past.folder), "left"),
    ]
    if any(map(_disturbances, pasts)):
        columns.insert(2, Column[Past]("conditions", _disturbances, "left"))
    hidden = (row.variant, "no options")
    words = [plain_line(word, longest=300) for word in dict.fromkeys(subject) if word not in hidden]
    title = f"{row.variant} at {cell_words(row.cell)}: {', '.join(words)}, {plural(len(pasts), 'run', 'runs')}"
    return Sheet(title, columns, pasts)
