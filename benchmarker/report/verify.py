"""Verification that every reported number follows from the raw samples.

Three kinds of values are checked: fields of a record that follow from its samples (memory maxima, sums of the profile,
parts of a total); every row of `benchmarker compare` (each metric with its interval, memory, the reference, the ratios
and their verdicts); and the printed text of the answer and of the first table. The expected values are computed from
the files' raw JSON by `comparison.recompute`, which shares only the metrics' formulas with the tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarker.comparison import recompute
from benchmarker.comparison.invariants import Check, equal, record_checks
from benchmarker.comparison.ranking import Ranking, ranking_of
from benchmarker.comparison.results import results_of_records
from benchmarker.comparison.rows import CellKey, Results, Row, cell_words, headline, keys_of
from benchmarker.core.formatting import GIB, MIB
from benchmarker.core.stats import Estimate, Ratio
from benchmarker.core.tables import unmarked
from benchmarker.report.answer import answer
from benchmarker.report.columns import first_table
from benchmarker.schema.record import RunRecord
from benchmarker.schema.record_io import collect, read_bytes, side_paths

Key = tuple[str, CellKey]  # Variant and cell of a row.
Rounds = dict[tuple[str, int], float]  # Times by sweep and round.
Ratios = Mapping[str, Any]  # Ratio, its interval and its verdict.
RATIO_PARTS = {"ratio": "value", "ratio_low": "low", "ratio_high": "high"}
ESTIMATE_PARTS = {"": "value", " low": "low", " high": "high", " deviation": "deviation"}
NUMBER = r"(\d+(?:\.\d+)?)"
NUMBER_OF_TIMES = re.compile(rf"{NUMBER}x")


@dataclass(frozen=True)
class Verified:
    records: int
    discarded: int  # Records of tries without a value, which are checked as well.
    numbers: int
    mismatches: tuple[Check, ...]
    problems: tuple[str, ...]  # Files that could not be read.

    @property
    def is_right(self) -> bool:
        return not self.mismatches and not self.problems


@dataclass(frozen=True)
class _Expected:
    numbers: dict[Key, recompute.Numbers]  # Metrics, memory and counts of each measured row.
    seconds: dict[Key, Rounds]  # Ranking metric by round, as seconds or inverse rates.
    calls: dict[Key, Rounds]  # Latency by round.
    metrics: dict[Key, str]  # Name of each row's ranking metric; a ratio needs two rows with the same metric.
    circumstances: Mapping[str, object]

    def rate(self, key: Key) -> float:
        """Return the inverse of the geometric mean of `seconds` over rounds."""
        return 1 / (recompute.centre(self.seconds[key]) or 0.0)

    def shown(self, row: Row) -> float:
        """Return the ranking metric in its printed unit."""
        rate, metric = self.rate(_key(row)), row.ranking
        return metric.scale * (rate if metric.better == "higher" else 1 / rate)

    def ratios(self, pairs: Mapping[Key, tuple[Key, Key]], times: Mapping[Key, Rounds]) -> dict[Key, Ratios]:
        tested = {
            name: recompute.ratio(
                times[reference], times[row], is_paired=self.circumstances[row[0]] == self.circumstances[reference[0]]
            )
            for name, (reference, row) in pairs.items()
        }
        all_p = [p for _, p in tested.values() if p is not None]
        return {
            name: {**numbers, "verdict": recompute.verdict(numbers, p, all_p)} for name, (numbers, p) in tested.items()
        }


def verify(paths: Sequence[str | Path]) -> Verified:
    """Check the records, tables and answers of each folder and workload below these paths. Raises ResultsError."""
    sides = [collect(members) for members in side_paths(paths).values()]
    checks = [(str(path), check) for side in sides for path, record in side.files for check in record_checks(record)]
    for side in sides:
        for workload in dict.fromkeys(record.workload for record in side.records):
            files = {path: record for path, record in side.files if record.workload == workload}
            checks += _comparison_checks(files, side.baseline)
    mismatches = tuple(replace(check, file=file) for file, check in checks if not check.holds)
    problems = tuple(problem for side in sides for problem in side.problems)
    records = [record for side in sides for record in side.records]
    discarded = sum(record.is_discarded for record in records)
    return Verified(len(records) - discarded, discarded, len(checks), mismatches, problems)


def _comparison_checks(files: dict[Path, RunRecord], sweep_baseline: str | None) -> Iterator[tuple[str, Check]]:
    results = results_of_records(tuple(files.values()), sweep_baseline=sweep_baseline, force=True)
    expected = _expected(results, files)
    references, named = _expected_references(results, expected)
    ratios = _expected_ratios(results, expected, references, named)
    for row in results.rows:
        if row.cell is None or row.status != "ok":
            continue
        reference = references[row.variant]
        has_reference = reference and row.pace and expected.seconds.get((reference, row.cell))
        values = {**expected.numbers[_key(row)], "reference": reference if has_reference else None}
        for name, kind in ratios.items():
            numbers = kind.get(_key(row), {})
            values |= {f"{name}{part}": numbers.get(part) for part in (*RATIO_PARTS, "verdict")}
        stated = _stated(row)
        for name, value in values.items():
            yield f"table, {row.variant}", equal(cell_words(row.cell), name, stated[name], value)
    ranking = ranking_of(results)
    yield from (("answer", check) for check in _ranking_checks(ranking, expected))
    yield from _printed_checks(results, ranking, expected, ratios)


def _key(row: Row) -> Key:
    assert row.cell is not None
    return row.variant, row.cell


def _expected(results: Results, files: dict[Path, RunRecord]) -> _Expected:
    contents = {id(record): json.loads(read_bytes(path), object_hook=recompute.Raw) for path, record in files.items()}
    numbers, seconds, calls, metrics = {}, {}, {}, {}
    for row in results.rows:
        if row.cell is None or row.status != "ok":
            continue
        members = [(record, contents[id(record)]) for record in results.members[row.variant]]
        cells, key = _cells(members, row.cell), _key(row)
        numbers[key] = recompute.numbers_of(cells, row.described.metrics)
        seconds[key] = recompute.seconds_by_round(row.ranking, cells) if row.pace else {}
        calls[key] = recompute.by_round(cells, lambda _, sample: sample.latency_s)
        metrics[key] = row.ranking.name
    return _Expected(numbers, seconds, calls, metrics, results.circumstances)


def _cells(members: Sequence[tuple[RunRecord, recompute.Raw]], key: CellKey) -> recompute.Cells:
    return [
        (raw, cell)
        for record, raw in members
        for cell_key, cell in zip(keys_of(record), raw.cells, strict=True)
        if cell_key == key and cell.status == "ok" and cell.samples
    ]


def _expected_references(results: Results, expected: _Expected) -> tuple[dict[str, str | None], str | None]:
    """Return each variant's reference by the variant's name, and the expected value of `Results.named`.

    The baseline of the sweep's file is the reference of all variants unless it is the workload's default baseline.
    """
    names = list(dict.fromkeys(row.variant for row in results.rows))
    if results.has_named_baseline:
        return dict.fromkeys(names, results.baseline), results.baseline
    cell = headline(results.rows)
    plain = [row for row in results.rows if row.cell and row.is_plain and expected.seconds.get(_key(row))]
    plain.sort(key=lambda row: (row.cell != cell, -expected.rate(_key(row))))
    engines = {row.variant: row.surroundings for row in results.rows}
    chosen: dict[str, str | None] = {}
    for name in names:
        candidates = [row.variant for row in plain if engines[row.variant] == engines[name]]
        chosen[name] = results.baseline if results.baseline in candidates else next(iter(candidates), None)
    return chosen, next((row.variant for row in plain), None)


def _expected_ratios(
    results: Results, expected: _Expected, references: Mapping[str, str | None], named: str | None
) -> dict[str, dict[Key, Ratios]]:
    """Return all ratios: key "" for speed-ups, "named " for ratios to `named`, "call " for ratios of whole calls."""
    seconds, calls = expected.seconds, expected.calls

    def pairs(references: Mapping[str, str | None], times: Mapping[Key, Rounds]) -> dict[Key, tuple[Key, Key]]:
        return {
            (variant, cell): ((name, cell), (variant, cell))
            for variant, cell in times
            if (name := references[variant]) and name != variant and times[variant, cell] and times.get((name, cell))
            if times is calls or expected.metrics[variant, cell] == expected.metrics[name, cell]
        }

    return {
        "": expected.ratios(pairs(references, seconds), seconds),
        "named ": expected.ratios(pairs(dict.fromkeys(references, named), seconds), seconds),
        "call ": expected.ratios(pairs(dict.fromkeys(references, results.baseline), calls), calls),
    }


def _stated(row: Row) -> dict[str, Any]:
    stated: dict[str, Any] = {
        "peak_memory_bytes": row.peak_memory_bytes,
        "rounds": row.rounds,
        "runs": row.runs,
        "reference": row.variant if row.is_reference and row.pace else row.speed_up.reference if row.speed_up else None,
        **_parts("latency_s", row.latency, ESTIMATE_PARTS),
    }
    for name, speed_up in (("", row.speed_up), ("named ", row.against_named), ("call ", row.call)):
        stated |= _parts(name, speed_up.ratio if speed_up else None, RATIO_PARTS)
        stated[f"{name}verdict"] = speed_up.verdict if speed_up else None
    for metric in row.described.metrics:
        measured = row.metrics.get(metric.name)
        stated |= _parts(metric.name, measured, ESTIMATE_PARTS)
        if metric.of_cell:
            stated[metric.name] = row.facts.get(metric.name)
    return stated


def _parts(name: str, measured: Estimate | Ratio | None, parts: Mapping[str, str]) -> dict[str, float | None]:
    return {f"{name}{part}": getattr(measured, attribute, None) for part, attribute in parts.items()}


def _ranking_checks(ranking: Ranking, expected: _Expected) -> Iterator[Check]:
    if ranking.fastest is None or ranking.cell is None:
        return
    where = cell_words(ranking.cell)
    rates = {row.variant: expected.rate(_key(row)) for row in ranking.measured}
    fastest = max(rates, key=lambda name: rates[name])
    yield equal(where, "fastest", rates[ranking.fastest.variant], rates[fastest])
    order = list(rates.values())
    yield Check(where, "order of the rows", order, "the fastest first", holds=order == sorted(order, reverse=True))
    # A rival's ratio is the fastest row's rate divided by the rival's rate.
    pairs = {_key(rival.row): (_key(rival.row), (fastest, ranking.cell)) for rival in ranking.rivals}
    ratios = expected.ratios(pairs, expected.seconds)
    for rival in ranking.rivals:
        numbers = ratios[_key(rival.row)]
        for name, part in RATIO_PARTS.items():
            yield equal(where, f"{name} to {rival.row.variant}", getattr(rival.ratio, part), numbers[name])
        if rival.verdict not in ("inconclusive", "not tested"):
            # The answer takes over an undecided verdict from the table, which corrects for more rows.
            yield equal(where, f"verdict on {rival.row.variant}", rival.verdict, numbers["verdict"])


def _printed_checks(
    results: Results, ranking: Ranking, expected: _Expected, ratios: Mapping[str, Mapping[Key, Ratios]]
) -> Iterator[tuple[str, Check]]:
    if ranking.fastest is None or ranking.cell is None:
        return
    where, leader, metric = cell_words(ranking.cell), ranking.leader, ranking.fastest.ranking
    for column in first_table(ranking).columns:
        for row in ranking.measured:
            text, numbers = column.text(row), ratios[""].get(_key(row), {})
            value: float | None = None
            if column.heading == metric.heading and row.ranking is metric:
                value = expected.shown(row)
            elif column.heading == "speed-up":
                value = numbers.get("ratio")
                if value is not None and NUMBER_OF_TIMES.match(text):
                    yield f"first table, {row.variant}", _interval_check(where, text, numbers)
            elif column.heading == f"vs {results.named}":
                value = ratios["named "].get(_key(row), {}).get("ratio")
            elif column.heading.startswith("peak "):
                size = expected.numbers[_key(row)]["peak_memory_bytes"]
                value = size / (GIB if column.heading.endswith("GiB") else MIB) if size is not None else None
            if value is not None and not text.startswith(("outlier", "wide")):
                yield f"first table, {row.variant}", _printed(where, column.heading, text, value)
    if leader is None:
        return
    lines = [unmarked(line) for line in answer(results, ranking)]
    after_name = lines[0].partition(leader.label)[2]
    if match := re.search(rf"{NUMBER} (?:[a-z]+ )?{re.escape(metric.shown_unit)}", after_name):
        yield "answer", _printed(where, metric.heading, match[1], expected.shown(leader))
    named = ratios["named "].get(_key(leader))
    if named and (match := re.search(rf"{NUMBER}x(?: \[{NUMBER}, {NUMBER}\])?", after_name)):
        for part, text in zip(RATIO_PARTS, match.groups(), strict=True):
            if text is not None:
                yield "answer", _printed(where, part, text, named[part])
    size = expected.numbers[_key(leader)]["peak_memory_bytes"]
    if size is not None and (match := re.search(rf"(?:Costs|Saves memory:) {NUMBER} GiB", " ".join(lines))):
        yield "answer", _printed(where, "peak GiB", match[1], size / GIB)


def _interval_check(where: str, text: str, numbers: Ratios) -> Check:
    match = re.search(rf"\[{NUMBER}, {NUMBER}\] (\w+)", text)
    ends = (numbers["ratio_low"], numbers["ratio_high"])
    if match is None:
        return Check(where, "interval of the speed-up", text, "no interval", holds=None in ends)
    holds = all(_shows(printed, value) for printed, value in zip(match.groups(), ends, strict=False))
    word = numbers["verdict"]
    return Check(where, "speed-up", text, f"{ends}, {word}", holds=holds and match[3] == word[: len(match[3])])


def _printed(where: str, name: str, text: str, value: float) -> Check:
    match = re.match(NUMBER, text)
    return Check(where, f"{name} as printed", text, value, holds=match is not None and _shows(match[1], value))


def _shows(text: str, value: float | None) -> bool:
    if value is None:
        return False
    decimals = len(text.partition(".")[2])
    return abs(float(text) - value) <= 0.5000001 * 10.0**-decimals
