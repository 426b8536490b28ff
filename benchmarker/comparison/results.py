"""Comparisons: rows of all variants and cells, with their speed-ups.

A record is one process. Several records of a variant are repeated processes, and those of one round are paired with
the baseline's process of that round. Records of different devices, models or library versions are refused, because
their difference would look like one between variants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarker.comparison.aggregate import make_row
from benchmarker.comparison.comparable import Identity, check_comparable, check_keys, named_variants
from benchmarker.comparison.comparing import keys_of
from benchmarker.comparison.rows import CellKey, Results
from benchmarker.comparison.speed_up import unquantized, with_speed_ups
from benchmarker.core.errors import ResultsError, did_you_mean
from benchmarker.schema.collect import Collected
from benchmarker.schema.record import RunRecord
from benchmarker.schema.registry import workload_of


def results_of(collected: Collected, *, baseline: str | None = None, force: bool = False) -> Results:
    """Compare the records that were collected below some paths.

    Args:
        baseline: Variant to which all others are compared. By default the baseline of the sweep's file if it is not
            the workload's default one, and otherwise the unquantized variant in each variant's engine.
        force: Compare also records that differ in device, model or versions. The tables name the differences.

    Raises:
        ResultsError: No such baseline, or records that do not compare.
    """
    return results_of_records(
        collected.records,
        baseline=baseline,
        sweep_baseline=collected.baseline,
        force=force,
        problems=collected.problems,
    )


def results_of_records(
    records: Sequence[RunRecord],
    *,
    baseline: str | None = None,
    sweep_baseline: str | None = None,
    force: bool = False,
    problems: tuple[str, ...] = (),
) -> Results:
    """Compare records. Otherwise as `results_of`.

    Args:
        sweep_baseline: Baseline in the sweep's file, which names one even if its user did not.
    """
    differences = check_comparable(records, force=force)
    variants = named_variants(records, differences)
    check_keys({name: members for name, (_, members) in variants.items()})
    default = _baseline(variants, None)
    of_sweep = sweep_baseline if sweep_baseline in variants and sweep_baseline != default else None
    named = _baseline(variants, baseline) if baseline else of_sweep
    chosen = named or default
    cells = sorted({key for record in records for key in keys_of(record)})
    keys: list[CellKey | None] = [*cells] or [None]
    rows = [make_row(name, key, members) for key in keys for name, (_, members) in variants.items()]
    circumstances = {name: identity.circumstances for name, (identity, _) in variants.items()}
    compared = with_speed_ups(rows, baseline=chosen, named=named, circumstances=circumstances)
    return Results(
        rows=workload_of(records[0].workload).with_baseline(compared, chosen),
        records=tuple(records),
        baseline=chosen,
        differences=tuple(difference.sentence() for difference in differences),
        problems=problems,
        members={name: tuple(members) for name, (_, members) in variants.items()},
        named=named or next((row.variant for row in unquantized(compared)), None),
        has_named_baseline=named is not None,
        circumstances=circumstances,
    )


def to_rows(results: Results) -> list[dict[str, Any]]:
    """Return plain rows for JSON, in base units."""
    return [row.values() for row in results.rows]


def _baseline(variants: dict[str, tuple[Identity, list[RunRecord]]], wanted: str | None) -> str:
    if wanted is not None:
        if wanted not in variants:
            raise ResultsError(f"--baseline {wanted}: no such variant in the records{did_you_mean(wanted, variants)}")
        return wanted

    def rank(name: str) -> tuple[bool, ...]:
        members = variants[name][1]
        could = any(cell.status == "ok" for record in members for cell in record.cells)
        # If the plainest variant failed, no row has a speed-up, and the table gives the reason.
        return *workload_of(members[0].workload).plainness(members[0]), could

    # The first of equals, in the order of the variants.
    return max(variants, key=rank)
