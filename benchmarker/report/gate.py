"""The gate's answer as markdown, for a pull request: the verdict first, then the cells it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarker.gate import Change, Gate
from benchmarker.report.columns import cell_columns
from benchmarker.report.numbers import percent, times, with_spread
from benchmarker.report.tables import Column, escaped, table
from benchmarker.report.words import status_words
from benchmarker.stats import CONFIDENCE, SAME_WITHIN
from benchmarker.units import MISSING


def gate_to_markdown(gate: Gate) -> str:
    """Headline, table, what changed, and how to read it."""
    parts = [_headline(gate), table(_columns(gate.changes), gate.changes)]
    if gate.changed:
        parts.append("\n".join(f"- {escaped(line, longest=300)}" for line in gate.changed))
    parts.append(_caption(gate))
    return "\n\n".join(parts) + "\n"


def _headline(gate: Gate) -> str:
    failed = sum(change.is_failed for change in gate.changes)
    untested = sum(change.verdict in (None, "not tested") and not change.is_failed for change in gate.changes)
    rest = f"; {untested} could not be tested" if untested else ""
    if failed:
        return f"**Failed ({gate.limit.text}): {failed} of {len(gate.changes)} cells{rest}**"
    return f"**Passed ({gate.limit.text}): {len(gate.changes) - untested} of {len(gate.changes)} cells{rest}**"


def _columns(changes: Sequence[Change]) -> list[Column[Change]]:
    return [
        *cell_columns(changes),
        Column("variant", lambda change: escaped(change.variant), "left"),
        Column("before tok/s", lambda change: with_spread(change.before.rate)),
        Column("after tok/s", _after),
        Column("after / before", _ratio),
        Column("gate", _gate, "left"),
    ]


def _after(change: Change) -> str:
    if change.after is None:
        return "not measured"
    return with_spread(change.after.rate) if change.after.rate else status_words(change.after.status)


def _ratio(change: Change) -> str:
    return f"{times(change.ratio)} {change.verdict}" if change.ratio else MISSING


def _gate(change: Change) -> str:
    if change.is_failed:
        return "**failed**"
    return "not tested" if change.verdict in (None, "not tested") else "passed"


def _caption(gate: Gate) -> str:
    return (
        f"A cell fails where it takes more than {percent(gate.limit.fraction, places=1)} longer and a ratio of 1 is "
        f"excluded, after Holm's correction over the table, or where it was measured before and fails now. "
        f"[low, high] is the {percent(CONFIDENCE)} interval from one median per process, unpaired (Welch); "
        f"same: within ±{percent(SAME_WITHIN)}."
    )
