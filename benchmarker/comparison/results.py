"""Compare records: which variant is how fast, how sure that is, and whether the records may be compared at all.

A record stands for one process. Several of one variant are repeated processes, and those of one round are a pair with
the baseline's of the same round. Records from different devices, models or library versions are refused, because a
table would show the difference between those as if it were one between variants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarker.comparison.aggregate import make_row
from benchmarker.comparison.comparable import Identity, check_comparable, check_keys, named_variants
from benchmarker.comparison.comparing import keys_of
from benchmarker.comparison.rows import CellKey, Results, Row
from benchmarker.core.errors import ResultsError, did_you_mean
from benchmarker.core.stats import Ratio, paired_ratio, unpaired_ratio, verdicts
from benchmarker.schema.collect import Collected
from benchmarker.schema.record import RunRecord
from benchmarker.schema.registry import workload_of


def results_of(collected: Collected, *, baseline: str | None = None, force: bool = False) -> Results:
    """The rows of what was found below some paths.

    Args:
        baseline: Variant that speed-ups are against. If not said, that of the sweep that made the records; else the
            plainest of the variants, as the workload has it.
        force: Compare also what differs in device, model or versions; the table says so.

    Raises:
        ResultsError: No such baseline, or records that do not compare.
    """
    is_there = any(record.variant.name == collected.baseline for record in collected.records)
    results = results_of_records(
        collected.records,
        baseline=baseline if baseline or not is_there else collected.baseline,
        force=force,
        problems=collected.problems,
    )
    # A sweep's file names its baseline also where nobody chose one.
    return replace(results, asked_baseline=baseline) if results.is_default_baseline else results


def results_of_records(
    records: Sequence[RunRecord],
    *,
    baseline: str | None = None,
    force: bool = False,
    problems: tuple[str, ...] = (),
) -> Results:
    """The rows of records that were read already. Otherwise as `results_of`."""
    differences = check_comparable(records, force=force)
    variants = named_variants(records, differences)
    check_keys({name: members for name, (_, members) in variants.items()})
    chosen, by_default = (_baseline(variants, wanted) for wanted in (baseline, None))
    cells = sorted({key for record in records for key in keys_of(record)})
    keys: list[CellKey | None] = [*cells] or [None]
    rows = [make_row(name, key, members) for key in keys for name, (_, members) in variants.items()]
    compared = _with_ratios(rows, chosen, {name: identity for name, (identity, _) in variants.items()})
    return Results(
        rows=workload_of(records[0].workload).with_baseline(compared, chosen),
        records=tuple(records),
        baseline=chosen,
        differences=tuple(difference.sentence() for difference in differences),
        problems=problems,
        members={name: tuple(members) for name, (_, members) in variants.items()},
        asked_baseline=baseline,
        is_default_baseline=chosen == by_default,
        circumstances={name: identity.circumstances for name, (identity, _) in variants.items()},
    )


def to_rows(results: Results) -> list[dict[str, Any]]:
    """Plain rows for a program: base units, null for what is not known."""
    return [workload_of(row.workload).row_values(row) for row in results.rows]


def _baseline(variants: dict[str, tuple[Identity, list[RunRecord]]], wanted: str | None) -> str:
    if wanted is not None:
        if wanted not in variants:
            raise ResultsError(f"--baseline {wanted}: no such variant in the records{did_you_mean(wanted, variants)}")
        return wanted

    def rank(name: str) -> tuple[bool, ...]:
        members = variants[name][1]
        could = any(cell.status == "ok" for record in members for cell in record.cells)
        # Where the plainest failed, nothing has a speed-up, and the table says why.
        return *workload_of(members[0].workload).plainness(members[0]), could

    # The first of equals, in the order of the variants.
    return max(variants, key=rank)


def _with_ratios(rows: Sequence[Row], baseline: str, identities: dict[str, Identity]) -> tuple[Row, ...]:
    """Each row with its speed-up, and the verdicts after a correction for all of them."""
    bases = {row.cell: row for row in rows if row.variant == baseline}
    ratios = {
        index: _ratio(bases[row.cell], row, identities)
        for index, row in enumerate(rows)
        if row.variant != baseline and row.latency and bases[row.cell].latency
    }
    words = dict(zip(ratios, verdicts(list(ratios.values())), strict=True))
    return tuple(
        replace(row, ratio=Ratio(1.0, rounds=row.rounds) if row.latency else None, verdict="baseline")
        if row.variant == baseline
        else replace(row, ratio=ratios.get(index), verdict=words.get(index))
        for index, row in enumerate(rows)
    )


def _ratio(base: Row, row: Row, identities: dict[str, Identity]) -> Ratio:
    # Rounds on two devices were not run in turns, so that nothing pairs them.
    if identities[base.variant].circumstances != identities[row.variant].circumstances:
        return unpaired_ratio(list(base.latency_by_round.values()), list(row.latency_by_round.values()))
    return paired_ratio(base.latency_by_round, row.latency_by_round)
