"""What the rows say together: from which length on a way to split costs nothing, and what a plain ring can reach."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from benchmarker.comparison.rows import Row
from benchmarker.core.formatting import percent
from benchmarker.core.tables import escaped
from benchmarker.workloads.context_parallel.sequence_split import most_of_ideal

HIDES = 0.05
"""A larger share of the time in which only communication runs is a cost."""
APART = 0.05
"""Two ways of measuring that share which differ by more are not one quantity."""


def remarks(rows: Sequence[Row], baseline: str | None) -> list[str]:  # noqa: ARG001
    """Where communication is hidden, the bound of a plain ring, and where the two ways of measuring differ."""
    return [*hiding(rows), *_bounds(rows), *_apart(rows)]


def hiding(rows: Sequence[Row]) -> list[str]:
    """From which length on each way to split hides its communication, for every number of ranks and mode."""
    lines: dict[tuple[int, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.cell and "exposed" in row.facts:
            lines[row.cell.ranks, row.cell.mode, row.variant].append(row)
    return [
        f"{ranks} ranks, {mode.replace('_', ' + ')}: {escaped(variant)} {_from_where(sorted(line, key=_length))}."
        for (ranks, mode, variant), line in lines.items()
    ]


def _from_where(line: Sequence[Row]) -> str:
    """Where a line of lengths begins to hide its communication, and what the link would have to give below."""
    costly = [row for row in line if row.facts["exposed"] > HIDES]
    lengths = [_length(row) for row in line]
    if not costly:
        return f"hides its communication {_at_all(lengths)} (at most {percent(HIDES)} exposed)"
    last = costly[-1]
    need, exposed = _need(last), percent(last.facts["exposed"])
    if last is line[-1]:
        if len(costly) == len(line) > 1:
            return f"does not hide its communication {_at_all(lengths)}: {exposed} exposed at {lengths[-1]:,}{need}"
        return f"does not hide its communication at {lengths[-1]:,} positions: {exposed} exposed{need}"
    following = lengths[line.index(last) + 1]
    return (
        f"hides its communication from between {_length(last):,} and {following:,} positions on; at "
        f"{_length(last):,}, {exposed} exposed{need}"
    )


def _at_all(lengths: Sequence[int]) -> str:
    if len(lengths) == 1:
        return f"at {lengths[0]:,} positions"
    return f"at any measured length, from {lengths[0]:,} to {lengths[-1]:,} positions"


def _need(row: Row) -> str:
    """`; each step would need 488 GB/s, and the link gives 296`: for a ring, which sends beside each block."""
    needed, link = row.facts.get("needed_link"), row.facts.get("measured_link")
    if needed is None or link is None:
        return ""
    return f"; each step would need {needed / 1e9:.3g} GB/s, and the link gives {link / 1e9:.3g}"


def _bounds(rows: Sequence[Row]) -> Iterator[str]:
    """What the causal mask leaves a plain ring, at the longest length of each number of ranks."""
    longest: dict[tuple[int, str], Row] = {}
    for row in sorted((row for row in rows if row.cell and row.form.get("split") == "ring"), key=_length):
        if row.cell and row.cell.ranks > 1 and "scaling" in row.metrics:
            longest[row.cell.ranks, row.variant] = row
    for (ranks, variant), row in longest.items():
        imbalance = row.facts.get("imbalance")
        waits = f", imbalance {imbalance:.2f}" if imbalance is not None else ""
        bound = percent(most_of_ideal(ranks), places=1)
        yield (
            f"{escaped(variant)}: under the causal mask a plain ring can use at most {bound} "
            f"of {ranks} ranks, N / (2N - 1); at {_length(row):,} positions its scaling was "
            f"{percent(row.metrics['scaling'].value, places=1)}{waits}."
        )


def _apart(rows: Sequence[Row]) -> Iterator[str]:
    """Cells whose exposed communication is one thing by the trace and another by leaving the exchange out."""
    for row in rows:
        by_trace, by_difference = row.facts.get("exposed_trace"), row.facts.get("exposed")
        if row.cell and by_trace is not None and by_difference is not None and abs(by_trace - by_difference) > APART:
            yield (
                f"{escaped(row.variant)} at {row.cell.words}: {percent(by_trace)} exposed by the trace and "
                f"{percent(by_difference)} by leaving the exchange out, more than {100 * APART:.0f} points apart: the "
                "two are of different calls, and a disturbed one shifts either."
            )


def _length(row: Row) -> int:
    return int(row.cell.seq_len) if row.cell else 0
