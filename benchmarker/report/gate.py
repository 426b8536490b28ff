"""The gate's answer as markdown, for a pull request: the verdict first, then the cells it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarker.comparison.rows import CellKey, Row
from benchmarker.core.numbers import percent, times, with_spread
from benchmarker.core.stats import CONFIDENCE, SAME_WITHIN, Ratio
from benchmarker.core.tables import Column, bullets, escaped, table
from benchmarker.core.units import MISSING
from benchmarker.report.columns import cell_columns
from benchmarker.schema.status_words import status_words


@dataclass(frozen=True)
class Limit:
    """How much slower is too slow."""

    text: str
    fraction: float
    """Of the time before: 0.05 fails what takes more than 1.05 times as long."""


@dataclass(frozen=True)
class Change:
    """One variant in one cell, before and after."""

    variant: str
    cell: CellKey | None
    before: Row
    after: Row | None
    """None where the second sweep has no such row."""
    ratio: Ratio | None
    """Speed after over speed before: below 1 is slower."""
    verdict: str | None
    """Faster, slower, same (within 2 %), inconclusive or not tested; None without two numbers."""
    is_failed: bool


@dataclass(frozen=True)
class Gate:
    """The answer, with every cell it rests on."""

    limit: Limit
    changes: tuple[Change, ...]
    changed: tuple[str, ...]
    """What is not the same on both sides, such as `torch: 2.11.0 before, 2.12.0 after`."""

    @property
    def is_failed(self) -> bool:
        """Whether any cell is."""
        return any(change.is_failed for change in self.changes)

    def _repr_markdown_(self) -> str:
        return gate_to_markdown(self)


def gate_to_markdown(gate: Gate) -> str:
    """Headline, table, what changed, and how to read it."""
    parts = [_headline(gate), table(_columns(gate.changes), gate.changes)]
    if gate.changed:
        parts.append(bullets(escaped(line, longest=300) for line in gate.changed))
    parts.append(_caption(gate))
    return "\n\n".join(parts) + "\n"


def gate_to_rows(gate: Gate) -> list[dict[str, Any]]:
    """One object a cell, for a program: null for what is not known."""
    return [
        {
            "variant": change.variant,
            **(asdict(change.cell) if change.cell else {}),
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
    shown = with_spread(change.after.rate) if change.after.rate else status_words(change.after.status)
    lost = dict.fromkeys(status_words(one.status) for one in change.after.failures if not one.is_repeated)
    return f"{shown} ({', '.join(lost)} in others)" if change.after.rate and lost else shown


def _ratio(change: Change) -> str:
    return f"{times(change.ratio)} {change.verdict}" if change.ratio else MISSING


def _gate(change: Change) -> str:
    if change.is_failed:
        return "**failed**"
    return "not tested" if change.verdict in (None, "not tested") else "passed"


def _caption(gate: Gate) -> str:
    return (
        f"A cell fails where it takes more than {percent(gate.limit.fraction, places=1)} longer and a ratio of 1 is "
        f"excluded, after Holm's correction over the table, or where it was measured before and fails now, in all "
        f"rounds or in so many that it cannot be tested. "
        f"[low, high] is the {percent(CONFIDENCE, places=0)} interval from one median per process, unpaired (Welch); "
        f"same: within ±{percent(SAME_WITHIN, places=0)}."
    )
