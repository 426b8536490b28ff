"""Does every stated number follow from the raw samples? For those who read someone else's results, or edited their own.

Two kinds of statement are checked: those that a record makes beside its samples (memory maxima, the profile's sums,
parts of a whole), and those that `compare` makes from records: every declared metric by its formula, with its interval,
and the speed-ups with their verdicts, computed again by code of its own (recompute.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarker.comparison.comparable import check_comparable, named_variants
from benchmarker.comparison.comparing import keys_of
from benchmarker.comparison.invariants import Check, equal, record_checks
from benchmarker.comparison.recompute import (
    Cells,
    Numbers,
    Raw,
    detectable,
    numbers_of,
    ratio,
    seconds_by_round,
    verdict,
)
from benchmarker.comparison.results import results_of_records
from benchmarker.comparison.rows import CellKey, Results, Row
from benchmarker.comparison.words import cell_words
from benchmarker.core.stats import Estimate
from benchmarker.schema.collect import collect
from benchmarker.schema.record import RunRecord
from benchmarker.schema.record_io import parse_json, read_bytes

Contents = dict[str, list[tuple[RunRecord, Raw]]]
"""Each variant's records, with what their files say."""


@dataclass(frozen=True)
class Mismatch:
    """One number that does not follow from the samples."""

    file: str
    """The record, or the variant of a table's row."""
    place: str
    """Cell or part of the record."""
    field: str
    stated: str
    recomputed: str

    def __str__(self) -> str:
        return f"{self.file}: {self.place}: {self.field} is {self.stated}, but the samples give {self.recomputed}"


@dataclass(frozen=True)
class Verified:
    """How much was checked, and what did not hold."""

    records: int
    numbers: int
    """How many statements were checked."""
    mismatches: tuple[Mismatch, ...]
    problems: tuple[str, ...]
    """Files that could not be read."""

    @property
    def is_right(self) -> bool:
        """Everything could be read, and everything matched."""
        return not self.mismatches and not self.problems


def verify(paths: Sequence[str | Path]) -> Verified:
    """Check all records below these paths, and the tables that they make: one a workload.

    Raises:
        ResultsError: There is no record.
    """
    collected = collect(paths)
    checks = [(str(path), check) for path, record in collected.files for check in record_checks(record)]
    for workload in dict.fromkeys(record.workload for record in collected.records):
        files = {path: record for path, record in collected.files if record.workload == workload}
        checks += [(f"table, {row.variant}", check) for row, check in _table_checks(files, collected.baseline)]
    wrong = [
        Mismatch(file, check.place, check.field, str(check.stated), str(check.recomputed))
        for file, check in checks
        if not check.holds
    ]
    return Verified(len(collected.files), len(checks), tuple(wrong), collected.problems)


def _table_checks(files: dict[Path, RunRecord], baseline: str | None) -> Iterator[tuple[Row, Check]]:
    """Every number of every row of the comparison that these records make."""
    records = tuple(files.values())
    chosen = baseline if any(record.variant.name == baseline for record in records) else None
    results = results_of_records(records, baseline=chosen, force=True)
    variants = named_variants(records, check_comparable(records, force=True))
    paths = {id(record): path for path, record in files.items()}
    contents: Contents = {
        name: [(record, Raw(parse_json(read_bytes(paths[id(record)]), paths[id(record)]))) for record in members]
        for name, (_, members) in variants.items()
    }
    circumstances = {name: identity.circumstances for name, (identity, _) in variants.items()}
    ratios = _ratios(results, contents, circumstances)
    all_p = [p for _, p in ratios.values() if p is not None]
    for index, row in enumerate(results.rows):
        if row.cell is None or row.status != "ok":
            continue
        expected: dict[str, Any] = dict(numbers_of(_cells(contents[row.variant], row.cell), row.described.metrics))
        if index in ratios:
            numbers, p = ratios[index]
            expected |= {field: numbers[field] for field in ("ratio", "ratio_low", "ratio_high")}
            expected |= {"detectable": detectable(numbers, len(all_p)), "verdict": verdict(numbers, p, all_p)}
        stated = _stated(row, tests=len(all_p))
        for field, value in expected.items():
            yield row, equal(cell_words(row.cell), field, stated[field], value)


def _cells(members: Sequence[tuple[RunRecord, Raw]], key: CellKey) -> Cells:
    """The cell of that key in the files that measured it."""
    pairs = [
        (raw, cell)
        for record, raw in members
        for cell_key, cell in zip(keys_of(record), raw.cells, strict=True)
        if cell_key == key
    ]
    return [(raw, cell) for raw, cell in pairs if cell.status == "ok" and cell.samples]


def _ratios(
    results: Results, contents: Contents, circumstances: dict[str, tuple[str | None, ...]]
) -> dict[int, tuple[Numbers, float | None]]:
    """Return the speed-up of each row, recomputed from the raw samples."""
    ratios = {}
    for index, row in enumerate(results.rows):
        if row.cell is None or row.speed_up is None:
            continue
        reference = row.speed_up.reference
        cells = [_cells(contents[name], row.cell) for name in (reference, row.variant)]
        base, variant = (seconds_by_round(row.ranking, members) for members in cells)
        is_paired = circumstances[reference] == circumstances[row.variant]
        ratios[index] = ratio(base, variant, is_paired=is_paired)
    return ratios


def _stated(row: Row, *, tests: int) -> dict[str, Any]:
    """All of a row's numbers, by the names they have in recompute.py."""
    stated: dict[str, Any] = {
        "peak_memory_bytes": row.peak_memory_bytes,
        "rounds": row.rounds,
        "runs": row.runs,
        "verdict": row.verdict,
        **{f"ratio{end}": getattr(row.ratio, part, None) for end, part in _RATIO.items()},
        "detectable": row.ratio.detectable(tests) if row.ratio else None,
        **_estimate("latency_s", row.latency),
    }
    for metric in row.described.metrics:
        measured = row.metrics.get(metric.name)
        stated |= {metric.name: row.facts.get(metric.name)} if metric.of_cell else _estimate(metric.name, measured)
    return stated


_RATIO = {"": "value", "_low": "low", "_high": "high"}


def _estimate(name: str, measured: Estimate | None) -> dict[str, float | None]:
    parts = {"": "value", " low": "low", " high": "high", " deviation": "deviation"}
    return {f"{name}{end}": getattr(measured, part, None) for end, part in parts.items()}
