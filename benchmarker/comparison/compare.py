"""Compare records: which variant is how fast, how sure that is, and whether the records may be compared at all.

    from benchmarker.comparison.compare import compare
    compare(["results/nvidia-h100"])          # a notebook shows the tables

A record stands for one process. Several of one variant are repeated processes, and those of one round are a pair with
the baseline's of the same round. Records from different devices, models or library versions are refused, because a
table would show the difference between those as if it were one between variants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarker.comparison.aggregate import keys_of, make_row
from benchmarker.comparison.comparable import Identity, check_comparable, check_keys, named_variants
from benchmarker.comparison.rows import CellKey, Results, Row, to_row, with_bound
from benchmarker.core.errors import ResultsError, did_you_mean
from benchmarker.core.stats import Ratio, paired_ratio, unpaired_ratio, verdicts
from benchmarker.explain.difference import Contrast, contrasts_of
from benchmarker.explain.explain import explain
from benchmarker.explain.values import Explanation, NotExplained, bounds_of
from benchmarker.report.explanations import reasons
from benchmarker.report.limits import tokens_in_common, with_best
from benchmarker.report.markdown import to_markdown
from benchmarker.schema.collect import Collected, collect
from benchmarker.workloads.generation.record import GenerationRecord

__all__ = ["Comparison", "compare", "to_markdown", "to_rows"]


@dataclass(frozen=True)
class Comparison(Results):
    """Variants side by side."""

    explained: tuple[Explanation | NotExplained, ...] = ()
    """Why each is as fast as it is, in the order of the rows."""
    contrasts: tuple[Contrast, ...] = ()
    """Each explained variant against the baseline, part by part."""

    def _repr_markdown_(self) -> str:
        return to_markdown(self)


def compare(
    paths: str | Path | Sequence[str | Path], *, baseline: str | None = None, force: bool = False
) -> Comparison:
    """Read all records below these paths and compare their variants.

    Args:
        paths: Records, or folders with records anywhere below them; one of them may stand by itself.
        baseline: Variant that speed-ups are against. If not said, that of the sweep that made the records; else fp16,
            on the eager engine if it is there; else the first variant.
        force: Compare also what differs in device, model or versions; the table says so.

    Raises:
        ResultsError: No record, no such baseline, or records that do not compare.
    """
    collected = collect([paths] if isinstance(paths, str | Path) else paths)
    return compare_collected(collected, baseline=baseline, force=force)


def compare_collected(collected: Collected, *, baseline: str | None = None, force: bool = False) -> Comparison:
    """Compare what was found. Otherwise as `compare`."""
    records = collected.records_of(GenerationRecord)
    is_there = any(record.variant.name == collected.baseline for record in records)
    chosen = baseline if baseline or not is_there else collected.baseline
    return compare_records(records, baseline=chosen, force=force, problems=collected.problems)


def compare_records(
    records: Sequence[GenerationRecord],
    *,
    baseline: str | None = None,
    force: bool = False,
    problems: tuple[str, ...] = (),
) -> Comparison:
    """Compare records that were read already. Otherwise as `compare`."""
    differences = check_comparable(records, force=force)
    variants = named_variants(records, differences)
    check_keys({name: members for name, (_, members) in variants.items()})
    chosen = _baseline(variants, baseline)
    known = sorted({key for record in records for key in keys_of(record)})
    keys: list[CellKey | None] = [*known] or [None]
    rows = [make_row(name, key, members) for key in keys for name, (_, members) in variants.items()]
    rows = _with_tokens_in_common(rows, chosen)
    explained = tuple(explain(name, members) for name, (_, members) in variants.items())
    compared = _with_ratios(rows, chosen, {name: identity for name, (identity, _) in variants.items()})
    verdicts_by_cell = {(row.variant, row.cell): row.verdict for row in compared if row.cell}
    bounds = bounds_of(explained)
    # Of what was compared by force, a difference is as much that of the devices or versions.
    contrasts = () if differences else contrasts_of(explained, chosen, verdicts_by_cell)
    return Comparison(
        rows=tuple(with_bound(row, bounds) for row in with_best(compared, chosen)),
        records=tuple(records),
        baseline=chosen,
        differences=tuple(difference.sentence() for difference in differences),
        problems=problems,
        reasons=reasons(explained),
        explained=explained,
        contrasts=contrasts,
        members={name: tuple(members) for name, (_, members) in variants.items()},
    )


def to_rows(results: Results) -> list[dict[str, Any]]:
    """Plain rows for a program: base units, null for what is not known."""
    return [to_row(row) for row in results.rows]


def _baseline(variants: dict[str, tuple[Identity, list[GenerationRecord]]], wanted: str | None) -> str:
    if wanted is not None:
        if wanted not in variants:
            raise ResultsError(f"--baseline {wanted}: no such variant in the records{did_you_mean(wanted, variants)}")
        return wanted

    def rank(name: str) -> tuple[bool, bool, bool]:
        members = variants[name][1]
        is_plain, is_eager = members[0].variant.quant == "fp16", members[0].variant.engine == "eager"
        could = any(cell.status == "ok" for record in members for cell in record.cells)
        # Where eager fp16 failed, nothing has a speed-up, and the table says why.
        return not is_plain, not (is_plain and is_eager), not could

    # The first of equals, in the order of the variants.
    return min(variants, key=rank)


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


def _with_tokens_in_common(rows: Sequence[Row], baseline: str) -> list[Row]:
    """Each row with how far its text goes along with the baseline's."""
    texts = {row.cell: row.first_tokens for row in rows if row.variant == baseline}
    return [replace(row, tokens_in_common=tokens_in_common(row.first_tokens, texts.get(row.cell, ()))) for row in rows]


def _ratio(base: Row, row: Row, identities: dict[str, Identity]) -> Ratio:
    # Rounds on two devices were not run in turns, so that nothing pairs them.
    if identities[base.variant].circumstances != identities[row.variant].circumstances:
        return unpaired_ratio(list(base.latency_by_round.values()), list(row.latency_by_round.values()))
    return paired_ratio(base.latency_by_round, row.latency_by_round)
