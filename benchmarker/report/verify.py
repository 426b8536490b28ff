"""Verification: every stated number follows from the raw samples.

Three kinds of statements are checked. A record's own statements beside its samples: memory maxima, sums of the profile,
parts of a whole. Every row of the comparison that `benchmarker compare` makes: each metric with its interval, memory,
the reference, the ratios and their verdicts. The text of the answer and of the first table, as it is printed. The
expected values come from the files' raw JSON and from `comparison.recompute`, which shares no code with the tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarker.comparison.comparable import check_comparable, named_variants
from benchmarker.comparison.invariants import Check, equal, record_checks
from benchmarker.comparison.ranking import Ranking, ranking_of
from benchmarker.comparison.recompute import (
    Cells,
    Numbers,
    Raw,
    by_round,
    centre,
    numbers_of,
    ratio,
    seconds_by_round,
    verdict,
)
from benchmarker.comparison.results import results_of_records
from benchmarker.comparison.rows import CellKey, Results, Row, cell_words, headline, keys_of
from benchmarker.comparison.speed_up import SpeedUp
from benchmarker.core.formatting import GIB, MIB
from benchmarker.core.stats import Estimate, Ratio
from benchmarker.core.tables import unmarked
from benchmarker.report.answer import answer
from benchmarker.report.first_table import first_table
from benchmarker.schema.record import RunRecord
from benchmarker.schema.record_io import collect, parse_json, read_bytes

Place = tuple[str, CellKey]
"""Variant and cell of a row."""
RATIO_PARTS = {"ratio": "value", "ratio_low": "low", "ratio_high": "high"}
ESTIMATE_PARTS = {"": "value", " low": "low", " high": "high", " deviation": "deviation"}
NUMBER = r"(\d+(?:\.\d+)?)"


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
    """Number of statements that were checked, and those that do not hold."""

    records: int
    numbers: int
    mismatches: tuple[Mismatch, ...]
    problems: tuple[str, ...]
    """Files that could not be read."""

    @property
    def is_right(self) -> bool:
        return not self.mismatches and not self.problems


@dataclass(frozen=True)
class _Expected:
    """Values recomputed from the raw samples."""

    numbers: dict[Place, Numbers]
    """Metrics, memory and counts of each measured row."""
    seconds: dict[Place, dict[tuple[str, int], float]]
    """Ranking metric by round, as seconds or inverse rates."""
    calls: dict[Place, dict[tuple[str, int], float]]
    """Latency by round."""
    metrics: dict[Place, str]
    """Name of each row's ranking metric. Rates of two metrics have no ratio."""
    circumstances: Mapping[str, object]
    references: dict[str, str | None] = field(default_factory=dict)
    named: str | None = None

    def rate(self, place: Place) -> float:
        """Return the inverse of the geometric mean over rounds: more is faster."""
        return 1 / (centre(self.seconds[place]) or 0.0)

    def ratios(
        self, pairs: Mapping[Place, Place], times: Mapping[Place, dict[tuple[str, int], float]]
    ) -> dict[Place, Numbers | dict[str, Any]]:
        """Return ratio, interval and verdict of each pair of a row and its reference."""
        tested = {
            place: ratio(
                times[reference],
                times[place],
                is_paired=self.circumstances[place[0]] == self.circumstances[reference[0]],
            )
            for place, reference in pairs.items()
        }
        all_p = [p for _, p in tested.values() if p is not None]
        return {place: {**numbers, "verdict": verdict(numbers, p, all_p)} for place, (numbers, p) in tested.items()}


def verify(paths: Sequence[str | Path]) -> Verified:
    """Check all records below these paths, and the tables and answers that they make: one per workload.

    Raises:
        ResultsError: There is no record.
    """
    collected = collect(paths)
    checks = [(str(path), check) for path, record in collected.files for check in record_checks(record)]
    for workload in dict.fromkeys(record.workload for record in collected.records):
        files = {path: record for path, record in collected.files if record.workload == workload}
        checks += _comparison_checks(files, collected.baseline)
    wrong = [
        Mismatch(file, check.place, check.field, str(check.stated), str(check.recomputed))
        for file, check in checks
        if not check.holds
    ]
    return Verified(len(collected.files), len(checks), tuple(wrong), collected.problems)


def _comparison_checks(files: dict[Path, RunRecord], sweep_baseline: str | None) -> Iterator[tuple[str, Check]]:
    """Check the comparison that `compare` makes of these records."""
    records = tuple(files.values())
    results = results_of_records(records, sweep_baseline=sweep_baseline, force=True)
    expected = _expected(results, files)
    ratios = _expected_ratios(results, expected)
    for row in results.rows:
        if row.cell is None or row.status != "ok":
            continue
        place = row.variant, row.cell
        stated = _stated(row)
        values = {**expected.numbers[place], "reference": _reference(row, expected)}
        for name, kind in ratios.items():
            values |= {f"{name}{part}": value for part, value in kind.get(place, _no_ratio()).items()}
        for name, value in values.items():
            yield f"table, {row.variant}", equal(cell_words(row.cell), name, stated[name], value)
    ranking = ranking_of(results)
    yield from (("answer", check) for check in _ranking_checks(ranking, expected))
    yield from _printed_checks(results, ranking, expected, ratios)


def _expected(results: Results, files: dict[Path, RunRecord]) -> _Expected:
    """Recompute the numbers of all rows from the files."""
    records = tuple(files.values())
    variants = named_variants(records, check_comparable(records, force=True))
    paths = {id(record): path for path, record in files.items()}
    contents = {
        name: [(record, Raw(parse_json(read_bytes(paths[id(record)]), paths[id(record)]))) for record in members]
        for name, (_, members) in variants.items()
    }
    numbers, seconds, calls = {}, {}, {}
    for row in results.rows:
        if row.cell is None or row.status != "ok":
            continue
        cells, place = _cells(contents[row.variant], row.cell), (row.variant, row.cell)
        numbers[place] = numbers_of(cells, row.described.metrics)
        seconds[place] = seconds_by_round(row.ranking, cells) if row.pace else {}
        calls[place] = by_round(cells, lambda _, sample: sample.latency_s)
    circumstances = {name: identity.circumstances for name, (identity, _) in variants.items()}
    metrics = {(row.variant, row.cell): row.ranking.name for row in results.rows if row.cell}
    expected = _Expected(numbers, seconds, calls, metrics, circumstances)
    references, named = _expected_references(results, expected)
    return replace(expected, references=references, named=named)


def _cells(members: Sequence[tuple[RunRecord, Raw]], key: CellKey) -> Cells:
    pairs = [
        (raw, cell)
        for record, raw in members
        for cell_key, cell in zip(keys_of(record), raw.cells, strict=True)
        if cell_key == key
    ]
    return [(raw, cell) for raw, cell in pairs if cell.status == "ok" and cell.samples]


def _expected_references(results: Results, expected: _Expected) -> tuple[dict[str, str | None], str | None]:
    """Return each variant's reference, and the variant that a table with several engines names.

    The baseline of the sweep's file is the reference of all variants if the workload would have chosen another one.
    """
    names = list(dict.fromkeys(row.variant for row in results.rows))
    if results.has_named_baseline:
        return dict.fromkeys(names, results.baseline), results.baseline
    cell = headline(results.rows)
    plain = [row for row in results.rows if row.cell and expected.seconds.get((row.variant, row.cell)) and row.is_plain]
    plain.sort(key=lambda row: (row.cell != cell, -expected.rate((row.variant, row.cell))))  # type: ignore[arg-type]
    engines = {row.variant: row.surroundings for row in results.rows}
    chosen: dict[str, str | None] = {}
    for name in names:
        candidates = [row.variant for row in plain if engines[row.variant] == engines[name]]
        chosen[name] = results.baseline if results.baseline in candidates else next(iter(candidates), None)
    return chosen, next((row.variant for row in plain), None)


def _expected_ratios(results: Results, expected: _Expected) -> dict[str, dict[Place, Any]]:
    """Return the three kinds of ratios of all rows: speed-up, relative to the named row, and of whole calls."""

    def pairs(
        reference_of: Callable[[str], str | None], times: Mapping[Place, dict[tuple[str, int], float]]
    ) -> dict[Place, Place]:
        return {
            (variant, cell): (name, cell)
            for variant, cell in times
            if (name := reference_of(variant)) and name != variant and times[variant, cell] and times.get((name, cell))
            if times is calls or expected.metrics[variant, cell] == expected.metrics[name, cell]
        }

    seconds, calls = expected.seconds, expected.calls
    return {
        "": expected.ratios(pairs(expected.references.get, seconds), seconds),
        "named ": expected.ratios(pairs(lambda _: expected.named, seconds), seconds),
        "call ": expected.ratios(pairs(lambda _: results.baseline, calls), calls),
    }


def _no_ratio() -> dict[str, None]:
    return dict.fromkeys((*RATIO_PARTS, "verdict"))


def _reference(row: Row, expected: _Expected) -> str | None:
    name = expected.references[row.variant]
    assert row.cell is not None
    return name if name and expected.seconds.get((name, row.cell)) and row.pace else None


def _stated(row: Row) -> dict[str, Any]:
    stated: dict[str, Any] = {
        "peak_memory_bytes": row.peak_memory_bytes,
        "rounds": row.rounds,
        "runs": row.runs,
        "reference": row.variant if row.is_reference and row.pace else row.speed_up.reference if row.speed_up else None,
        **_estimate("latency_s", row.latency),
        **_speed_up("", row.speed_up),
        **_speed_up("named ", row.against_named),
        **_speed_up("call ", row.call),
    }
    for metric in row.described.metrics:
        measured = row.metrics.get(metric.name)
        stated |= {metric.name: row.facts.get(metric.name)} if metric.of_cell else _estimate(metric.name, measured)
    return stated


def _speed_up(name: str, speed_up: SpeedUp | None) -> dict[str, Any]:
    ratio_of: Ratio | None = speed_up.ratio if speed_up else None
    parts = {f"{name}{part}": getattr(ratio_of, attribute, None) for part, attribute in RATIO_PARTS.items()}
    return {**parts, f"{name}verdict": speed_up.verdict if speed_up else None}


def _estimate(name: str, measured: Estimate | None) -> dict[str, float | None]:
    return {f"{name}{end}": getattr(measured, part, None) for end, part in ESTIMATE_PARTS.items()}


def _ranking_checks(ranking: Ranking, expected: _Expected) -> Iterator[Check]:
    """Check order, leader and rivals of the first table's cell."""
    if ranking.fastest is None or ranking.cell is None:
        return
    where, cell = cell_words(ranking.cell), ranking.cell
    rates = {row.variant: expected.rate((row.variant, cell)) for row in ranking.measured}
    fastest = max(rates, key=lambda name: rates[name])
    yield equal(where, "fastest", rates[ranking.fastest.variant], rates[fastest])
    order = [rates[row.variant] for row in ranking.measured]
    yield Check(where, "order of the rows", order, "the fastest first", holds=order == sorted(order, reverse=True))
    places = {rival.row.variant: (rival.row.variant, cell) for rival in ranking.rivals}
    # A rival's ratio is the fastest row's rate divided by its own.
    tested = {
        name: ratio(
            expected.seconds[place],
            expected.seconds[fastest, cell],
            is_paired=expected.circumstances[name] == expected.circumstances[fastest],
        )
        for name, place in places.items()
    }
    all_p = [p for _, p in tested.values() if p is not None]
    for rival in ranking.rivals:
        numbers, p = tested[rival.row.variant]
        for name, part in RATIO_PARTS.items():
            yield equal(where, f"{name} to {rival.row.variant}", getattr(rival.ratio, part), numbers[name])
        alone = verdict(numbers, p, all_p)
        if rival.verdict not in ("inconclusive", "not tested"):
            # An open verdict of the table holds in the answer too.
            yield equal(where, f"verdict on {rival.row.variant}", rival.verdict, alone)


def _printed_checks(
    results: Results, ranking: Ranking, expected: _Expected, ratios: Mapping[str, Mapping[Place, Any]]
) -> Iterator[tuple[str, Check]]:
    """Check the texts of the first table and of the answer."""
    if ranking.leader is None or ranking.cell is None:
        return
    where, cell = cell_words(ranking.cell), ranking.cell
    metric = ranking.leader.ranking
    for column in first_table(ranking).columns:
        for row in ranking.measured:
            place = row.variant, cell
            text = column.text(row)
            value: float | None = None
            if column.heading == metric.heading and row.ranking is metric:
                value = _rate_of(row, expected) * metric.scale
            elif column.heading == "speed-up":
                value = ratios[""].get(place, {}).get("ratio")
                if value is not None and "x" in text:
                    yield f"first table, {row.variant}", _interval_check(where, text, ratios[""][place])
            elif column.heading == f"vs {results.named}":
                value = ratios["named "].get(place, {}).get("ratio")
            elif column.heading.startswith("peak "):
                size = expected.numbers[place]["peak_memory_bytes"]
                value = size / (GIB if column.heading.endswith("GiB") else MIB) if size is not None else None
            if value is not None and not text.startswith("outlier"):
                yield f"first table, {row.variant}", _printed(where, column.heading, text, value)
    lines = [unmarked(line) for line in answer(results, ranking)]
    leader = ranking.leader
    after_name = lines[0].partition(leader.label)[2]
    unit = re.escape(metric.shown_unit)
    if match := re.search(rf"{NUMBER} {unit}", after_name):
        yield "answer", _printed(where, metric.heading, match[1], _rate_of(leader, expected) * metric.scale)
    named = ratios["named "].get((leader.variant, cell))
    if named and (match := re.search(rf"{NUMBER}x(?: \[{NUMBER}, {NUMBER}\])?", after_name)):
        for part, text in zip(RATIO_PARTS, match.groups(), strict=True):
            if text is not None:
                yield "answer", _printed(where, part, text, named[part])
    size = expected.numbers[leader.variant, cell]["peak_memory_bytes"]
    if size is not None and (match := re.search(rf"Costs {NUMBER} GiB", " ".join(lines))):
        yield "answer", _printed(where, "peak GiB", match[1], size / GIB)


def _rate_of(row: Row, expected: _Expected) -> float:
    assert row.cell is not None
    rate = expected.rate((row.variant, row.cell))
    return rate if row.ranking.better == "higher" else 1 / rate


def _interval_check(where: str, text: str, numbers: Mapping[str, Any]) -> Check:
    match = re.search(rf"\[{NUMBER}, {NUMBER}\] (\w+)", text)
    ends = (numbers["ratio_low"], numbers["ratio_high"])
    if match is None:
        return Check(where, "interval of the speed-up", text, "no interval", holds=None in ends)
    holds = all(_shows(shown, value) for shown, value in zip(match.groups(), ends, strict=False))
    return Check(
        where,
        "speed-up",
        text,
        f"{ends}, {numbers['verdict']}",
        holds and match[3] == numbers["verdict"][: len(match[3])],
    )


def _printed(where: str, name: str, text: str, value: float) -> Check:
    match = re.match(NUMBER, text)
    return Check(
        where, f"{name} as printed", text, value, holds=bool(match) and _shows(match[1] if match else "", value)
    )


def _shows(text: str, value: float | None) -> bool:
    if value is None:
        return False
    decimals = len(text.partition(".")[2])
    return abs(float(text) - value) <= 0.5000001 * 10.0**-decimals
