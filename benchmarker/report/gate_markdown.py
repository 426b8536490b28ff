"""Blocks of the gate for a terminal or a pull request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarker.comparison.gate import Change, Gate
from benchmarker.comparison.rows import Row
from benchmarker.core.formatting import MISSING, percent, times, with_spread
from benchmarker.core.stats import CONFIDENCE, SAME_WITHIN
from benchmarker.core.tables import Block, Column, Sheet, Text, bold, bullets, plain_line
from benchmarker.schema.record import status_words
from benchmarker.schema.registry import workload_of


def gate_blocks(gate: Gate) -> list[Block]:
    """Return headline, table, differences between the two sides, and how to read the table."""
    blocks: list[Block] = [_headline(gate), Sheet("", _columns(gate.changes), gate.changes)]
    if gate.changed:
        blocks.append(bullets(plain_line(line, longest=300) for line in gate.changed))
    return [*blocks, _caption(gate)]


def gate_to_rows(gate: Gate) -> list[dict[str, Any]]:
    """Return one object per cell for JSON."""
    return [
        {
            "variant": change.variant,
            **(dict(change.cell.pairs) if change.cell else {}),
            "before_latency_s": change.before.latency.value if change.before.latency else None,
            "after_latency_s": change.after.latency.value if change.after and change.after.latency else None,
            "ratio": change.ratio.value if change.ratio else None,
            "ratio_low": change.ratio.low if change.ratio else None,
            "ratio_high": change.ratio.high if change.ratio else None,
            "verdict": change.verdict,
            "failed": change.is_failed,
        }
        for change in gate.changes
    ]


def _headline(gate: Gate) -> str:
    failed = sum(change.is_failed for change in gate.changes)
    untested = sum(change.verdict in (None, "not tested") and not change.is_failed for change in gate.changes)
    rest = f"; {untested} could not be tested" if untested else ""
    if failed:
        return bold(f"Failed ({gate.limit.text}): {failed} of {len(gate.changes)} cells{rest}")
    return bold(f"Passed ({gate.limit.text}): {len(gate.changes) - untested} of {len(gate.changes)} cells{rest}")


def _columns(changes: Sequence[Change]) -> list[Column[Change]]:
    headings = {change.before.ranking.heading for change in changes}
    heading = headings.pop() if len(headings) == 1 else changes[0].before.ranking.shown_unit
    return [
        *workload_of(changes[0].before.workload).cell_columns(changes),
        Column("variant", lambda change: change.variant, "left"),
        Column(f"before {heading}", lambda change: _rate(change.before)),
        Column(f"after {heading}", _after),
        Column("after / before", _ratio),
        Column("gate", _gate, "left"),
    ]


def _rate(row: Row) -> str:
    return with_spread(row.pace, scale=row.ranking.scale)


def _after(change: Change) -> str:
    if change.after is None:
        return "not measured"
    rate = _rate(change.after) if change.after.pace else status_words(change.after.status)
    lost = [failure for failure in change.after.failures if not failure.is_repeated]
    statuses = dict.fromkeys(status_words(failure.status) for failure in lost)
    return f"{rate} ({', '.join(statuses)} in others)" if change.after.pace and lost else rate


def _ratio(change: Change) -> str:
    return f"{times(change.ratio)} {change.verdict}" if change.ratio else MISSING


def _gate(change: Change) -> str:
    if change.is_failed:
        return Text(bold("failed"))
    return "not tested" if change.verdict in (None, "not tested") else "passed"


def _caption(gate: Gate) -> str:
    return (
        f"The ratio is that of the rates shown. A cell fails if its rate before is more than "
        f"{percent(gate.limit.fraction, places=1)} above its rate after and a ratio of 1 is excluded, after Holm's "
        f"correction over the table; if it was measured before and fails now, in all rounds or in so many that it "
        f"cannot be tested; or if its variant is missing now. "
        f"[low, high] is the {percent(CONFIDENCE, places=0)} interval from one median per process, unpaired (Welch); "
        f"same: within ±{percent(SAME_WITHIN, places=0)}."
    )
