"""Regression gate: compare two saved sweeps cell by cell, and fail if a cell became slower.

    check(compare(["results/before"]), compare(["results/after"]), limit="slower:5%").is_failed

The sweeps share no rounds, so their processes are compared by an unpaired test. A cell fails if the change is
significant (the 95 % interval excludes 1, after Holm's correction over all cells) and larger than the limit. A cell
that was measured before also fails if it now fails in all rounds, or in so many that it cannot be tested.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarker.comparison import comparable
from benchmarker.comparison.rows import CellKey, Circumstance, Results, Row, number_text, with_ends
from benchmarker.comparison.speed_up import rate_ratio
from benchmarker.core.errors import ResultsError
from benchmarker.core.formatting import MISSING, percent, times
from benchmarker.core.stats import CONFIDENCE, MIN_ROUNDS, SAME_WITHIN, Ratio, verdicts
from benchmarker.core.tables import Block, Column, Sheet, Text, bold, bullets, plain_line
from benchmarker.schema.record import RunRecord, status_words
from benchmarker.schema.registry import workload_of

MUST_BE_EQUAL = ("device", "device kind")
"""Fields in which both sweeps must agree, in addition to `Workload.must_be_equal`, such as the model. Differences in
other fields may be the tested change and are listed below the table."""
UNTESTED = (None, "not tested")


@dataclass(frozen=True)
class Change:
    variant: str
    cell: CellKey | None
    before: Row
    after: Row | None
    ratio: Ratio | None  # Rate after divided by rate before: below 1 is slower.
    verdict: str | None  # Verdict of the test with a band of 2 %; None if a rate is missing.
    is_failed: bool


@dataclass(frozen=True)
class Gate:
    limit: str  # Slow-down above which the gate fails, such as `slower:5%`.
    fraction: float
    """The limit as a fraction: 0.05 fails a cell that takes more than 1.05 times as long as before."""
    changes: tuple[Change, ...]
    changed: tuple[str, ...]  # Differences between the sweeps, such as `driver: 550 before, 570 after`.

    @property
    def is_failed(self) -> bool:
        return any(change.is_failed for change in self.changes)


def check(before: Results, after: Results, *, limit: str, force: bool = False) -> Gate:
    """Compare two sweeps. Raises ResultsError if their devices or models differ, unless `force`."""
    match = re.fullmatch(r"slower:\s*([0-9]+(?:\.[0-9]+)?)\s*%", limit)
    if not match or not 0 < float(match[1]) <= 1000:
        raise ResultsError(f"--fail-if {limit}: write it as slower:5%, with a percentage above 0")
    fraction = float(match[1]) / 100
    changed = what_changed(before.records, after.records, force=force)
    changes = _changes(before.rows, after.rows, fraction)
    if not any(change.is_failed or change.verdict not in UNTESTED for change in changes):
        raise ResultsError(
            f"--fail-if {limit}: nothing can be tested; both sides need a cell in common with {MIN_ROUNDS} rounds "
            f"or more (`benchmarker sweep --rounds {MIN_ROUNDS}`)"
        )
    unread = tuple(f"left out: {problem}" for problem in (*before.problems, *after.problems))
    return Gate(limit, fraction, changes, (*changed, *unread))


def what_changed(
    before: Sequence[RunRecord],
    after: Sequence[RunRecord],
    *,
    names: tuple[str, str] = ("before", "after"),
    force: bool,
) -> tuple[str, ...]:
    """Return the differences between two sweeps. Raises ResultsError for other devices or models, unless `force`."""
    records = [*before, *after]
    comparable.check_workload(records)
    workload = before[0].workload
    must_be_equal = (*MUST_BE_EQUAL, *workload_of(workload).must_be_equal)
    forbidden = [difference for difference in comparable.between_records(records) if difference.field in must_be_equal]
    forbidden += comparable.between_inputs(records)
    if forbidden and not force:
        raise ResultsError(comparable.refusal(forbidden))
    fields = {**comparable.circumstances(workload), "commit": lambda record: record.environment.commit}
    was, now = ({record.variant.name: record.form for record in side} for side in (before, after))
    common = was.keys() & now.keys()
    # Other variants use other libraries.
    compared = [[each for each in side if each.variant.name in common] or side for side in (before, after)]
    sides = {field: tuple(_values(side, value_of) for side in compared) for field, value_of in fields.items()}
    sides = {
        field: values for field, values in sides.items() if field not in comparable.OPTIONAL or "unknown" not in values
    }
    for name in sorted(common):
        sides |= {f"{field} of {name}": (old, now[name][field]) for field, old in was[name].items()}
    first, second = names
    return tuple(f"{field}: {old} {first}, {new} {second}" for field, (old, new) in sides.items() if old != new)


def _values(records: Sequence[RunRecord], value_of: Circumstance) -> str:
    return " or ".join(sorted(set(filter(None, map(value_of, records))))) or "unknown"


def _changes(before: Sequence[Row], after: Sequence[Row], fraction: float) -> tuple[Change, ...]:
    after_rows = {(row.variant, row.cell): row for row in after}
    variants = {row.variant for row in after}
    pairs = [(row, after_rows.get((row.variant, row.cell))) for row in before if row.status == "ok"]
    ratios = [rate_ratio(old, new, None) if new else None for old, new in pairs]
    tested = [ratio for ratio in ratios if ratio]
    by_band, by_limit = iter(verdicts(tested)), iter(verdicts(tested, band=fraction))
    changes = []
    for (old, new), ratio in zip(pairs, ratios, strict=True):
        is_slower = next(by_limit) == "slower" if ratio else new is not None and new.status != "ok"
        verdict = next(by_band) if ratio else None
        is_failed = is_slower or _is_lost(old, new) or old.variant not in variants
        changes.append(Change(old.variant, old.cell, old, new, ratio, verdict, is_failed))
    return tuple(changes)


def _is_lost(old: Row, new: Row | None) -> bool:
    if new is None or not new.rounds < MIN_ROUNDS <= old.rounds:
        return False
    return any(not failure.is_repeated and failure.status != "invalid" for failure in new.failures)


def gate_blocks(gate: Gate) -> list[Block]:
    failed = sum(change.is_failed for change in gate.changes)
    untested = sum(change.verdict in UNTESTED and not change.is_failed for change in gate.changes)
    word, count = ("Failed", failed) if failed else ("Passed", len(gate.changes) - untested)
    rest = f"; {untested} could not be tested" if untested else ""
    return [
        bold(f"{word} ({gate.limit}): {count} of {len(gate.changes)} cells{rest}"),
        Sheet("", _columns(gate.changes), gate.changes),
        bullets(plain_line(line, longest=300) for line in gate.changed),
        f"The ratio is that of the rates shown. A cell fails if its rate before is more than "
        f"{percent(gate.fraction, places=1)} above its rate after and a ratio of 1 is excluded, after Holm's "
        f"correction over the table; if it was measured before and fails now, in all rounds or in so many that it "
        f"cannot be tested; or if its variant is missing now. "
        f"[low, high] is the {percent(CONFIDENCE, places=0)} interval from one median per process, unpaired (Welch); "
        f"same: within ±{percent(SAME_WITHIN, places=0)}.",
    ]


def gate_to_rows(gate: Gate) -> list[dict[str, Any]]:
    return [
        {
            "variant": change.variant,
            **(dict(change.cell.pairs) if change.cell else {}),
            "before_latency_s": change.before.latency.value if change.before.latency else None,
            "after_latency_s": change.after.latency.value if change.after and change.after.latency else None,
            **with_ends("ratio", change.ratio),
            "verdict": change.verdict,
            "failed": change.is_failed,
        }
        for change in gate.changes
    ]


def _columns(changes: Sequence[Change]) -> list[Column[Change]]:
    headings = {change.before.ranking.heading for change in changes}
    heading = headings.pop() if len(headings) == 1 else changes[0].before.ranking.shown_unit
    return [
        *workload_of(changes[0].before.workload).cell_columns(changes),
        Column("variant", lambda change: change.variant, "left"),
        Column(f"before {heading}", lambda change: change.before.pace_spread),
        Column(f"after {heading}", _after),
        Column(
            "after / before",
            lambda change: (
                f"{number_text(change.ratio, times(change.ratio), None)} {change.verdict}" if change.ratio else MISSING
            ),
        ),
        Column("gate", _gate, "left"),
    ]


def _after(change: Change) -> str:
    if change.after is None:
        return "not measured"
    rate = change.after.pace_spread if change.after.pace else status_words(change.after.status)
    lost = [failure for failure in change.after.failures if not failure.is_repeated]
    statuses = dict.fromkeys(status_words(failure.status) for failure in lost)
    return f"{rate} ({', '.join(statuses)} in others)" if change.after.pace and lost else rate


def _gate(change: Change) -> str:
    if change.is_failed:
        return Text(bold("failed"))
    return "not tested" if change.verdict in UNTESTED else "passed"
