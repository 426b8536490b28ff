"""Caveats below a table, and the drift of the machine."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from scipy.special import stdtr

from benchmarker.comparison.rows import CellKey, Failure, Row, cell_words, keys_of, listed
from benchmarker.core.formatting import approximate_duration, percent, plural
from benchmarker.core.tables import plain_line
from benchmarker.schema.record import Flag, RunRecord, status_words

FLAGS: dict[Flag, str] = {
    "unstable_warmup": "the last three warm-ups differed by more than 2 %, or there were fewer than three",
    "late_warmup": "the first timed run was far slower than the others",
    "nondeterministic_tokens": "repeats of the same prompt gave different tokens",
    "power_limited": "the power limit held the clocks down",
    "throttling_unknown": "the driver did not report the clocks' limits",
    "shared_device": "other processes used the device during the measurement",
    "step_differs": "predictions of the timed step differ from the variant's forward pass by more than rounding",
    "disturbed": "other programs used the same cores during the measurement and during its repetition",
    "shared_host": "other workers of the same host measured at the same time; host-bound rows, such as eager ones, "
    "may be slower than alone",
    "imported": "read from a log, which contains less than a record",
}

RecordT = TypeVar("RecordT", bound=RunRecord)
REASON_LENGTH = 300
UUID_LENGTH = 12
COMMIT_LENGTH = 7
CLOCKS_WITHIN = 1.03
"""Ratio of clocks above which the clocks of the variants are printed."""


def plain_caveats(records: Sequence[RunRecord], rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the caveats of any workload, the most important first."""
    return (
        *origins(records),
        *failed(rows),
        *unfinished(records),
        *conditions(records, rows),
    )


def origins(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return the GPUs, versions of benchmarker and sweeps of the records, if there are several."""
    return *_devices(records), *_commits(records), *_sweeps(records)


def conditions(records: Sequence[RunRecord], rows: Sequence[Row]) -> tuple[str, ...]:
    """Return clocks, drift, flags of cells and missing energy."""
    return *_clocks(rows), *_drifted(records), *_flagged(rows), *_no_energy(records)


def _devices(records: Sequence[RunRecord]) -> list[str]:
    return _who_ran_what(
        "boards, which may differ in speed",
        variants_by(records, lambda record: record.environment.device.uuid),
        letters=UUID_LENGTH,
    )


def _commits(records: Sequence[RunRecord]) -> list[str]:
    return _who_ran_what(
        "versions of benchmarker",
        variants_by(records, lambda record: record.environment.commit),
        letters=COMMIT_LENGTH,
    )


def _who_ran_what(who: str, variants: dict[str, list[str]], *, letters: int) -> list[str]:
    """Return each device or version with its variants; nothing if there is only one.

    Args:
        who: Plural noun of the devices or versions.
        variants: Names of variants by UUID or commit.
        letters: Printed letters of the UUID or commit.
    """
    if len(variants) < 2:
        return []
    each = (f"{plain_line(identity[:letters])} ran {names(members)}" for identity, members in variants.items())
    return [f"{len(variants)} {who}: {'; '.join(each)}."]


def _sweeps(records: Sequence[RunRecord]) -> list[str]:
    sweeps_by_variant: dict[str, set[str]] = {}
    for record in records:
        sweeps_by_variant.setdefault(record.variant.name, set()).add(record.sweep or "single runs")
    merged = {name: sweeps for name, sweeps in sweeps_by_variant.items() if len(sweeps) > 1}
    if not merged:
        return []
    sweeps = sorted(set().union(*merged.values()))
    return [f"{names(merged)}: rows merge {len(sweeps)} sweeps: {', '.join(map(plain_line, sweeps))}."]


def variants_by(records: Sequence[RecordT], value_of: Callable[[RecordT], str | None]) -> dict[str, list[str]]:
    """Return the distinct names of variants by a value of their records. Records without the value are skipped."""
    variants: dict[str, dict[str, None]] = {}
    for record in records:
        if value := value_of(record):
            variants.setdefault(value, {})[record.variant.name] = None
    return {value: list(members) for value, members in variants.items()}


def names(variants: Iterable[str]) -> str:
    return ", ".join(map(plain_line, variants))


def failed(rows: Sequence[Row]) -> list[str]:
    """Return one line per reason with all its rows, then the rounds that were left out."""
    by_failure: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.status != "ok":
            by_failure.setdefault((row.variant, row.status, row.reason or ""), []).append(row)
    # A reason of several variants, such as an unreachable hub, is printed once.
    by_explanation: dict[str, list[str]] = {}
    for (variant, status, reason), members in by_failure.items():
        by_explanation.setdefault(f"{_where(members)}: {_why(status, reason)}", []).append(variant)
    lines = [f"{names(variants)}{explanation}" for explanation, variants in by_explanation.items()]
    return lines + _failed_rounds(rows)


def _failed_rounds(rows: Sequence[Row]) -> list[str]:
    alike: dict[tuple[bool, str], list[tuple[Row, Failure]]] = {}
    for row in rows:
        for failure in row.failures:
            kind = re.sub(r"\d+", "#", f"{failure.status} {failure.reason}")
            alike.setdefault((failure.is_repeated, kind), []).append((row, failure))
    lines = []
    for (is_repeated, _), members in alike.items():
        what = "measured again" if is_repeated else "left out"
        row, failure = members[0]
        why = _why(failure.status, failure.reason or "")
        if len(members) == 1:
            was = "was" if is_repeated else "is"
            lines.append(f"{plain_line(row.variant)}{_where([row])}: round {failure.round + 1} {was} {what}: {why}")
            continue
        numbers: dict[str, list[str]] = {}
        for member, failed_round in members:
            numbers.setdefault(member.variant, []).append(str(failed_round.round + 1))
        each = (f"{plain_line(variant)} round{'s' * (len({*of}) > 1)} {listed(of)}" for variant, of in numbers.items())
        lines.append(f"{what}: {'; '.join(each)}; the first: {why}")
    return lines


def _why(status: str, reason: str) -> str:
    words = status_words(status)
    return f"{words}: {plain_line(reason, longest=REASON_LENGTH)}" if reason else f"{words}."


def _where(rows: Sequence[Row]) -> str:
    cells = [row.cell for row in rows if row.cell]
    if not cells:
        return ""
    return f" at {cell_words(cells[0])}" if len(cells) == 1 else f" in {len(cells)} cells"


def unfinished(records: Sequence[RunRecord]) -> list[str]:
    words = {
        "running": "has not finished, or its process died: the saved cells are used",
        "interrupted": "was interrupted: the cells it finished are used",
    }
    has_rounds = any(record.round for record in records)
    return [
        f"{plain_line(record.variant.name)}{f', round {record.round + 1}' if has_rounds else ''}: "
        f"the run {words[record.status]}."
        for record in records
        if record.status in words
    ]


def _clocks(rows: Sequence[Row]) -> list[str]:
    cells: dict[CellKey, dict[str, float]] = {}
    for row in rows:
        if row.cell and row.clock_mhz:
            cells.setdefault(row.cell, {})[row.variant] = row.clock_mhz
    return [
        f"clocks differ at {cell_words(cell)}: "
        + ", ".join(f"{plain_line(name)} {clock:.0f} MHz" for name, clock in clocks.items())
        + "."
        for cell, clocks in cells.items()
        if max(clocks.values()) > CLOCKS_WITHIN * min(clocks.values())
    ]


def _drifted(records: Sequence[RunRecord]) -> list[str]:
    drift = find_drift(records)
    if drift is None:
        return []
    return [
        f"drift: from the first cell to the last, {approximate_duration(drift.span_s)}, everything became "
        f"{percent(abs(drift.change), places=1)} {'slower' if drift.change > 0 else 'faster'} (p = {drift.p:.1g}); "
        "rounds in turns share that among the variants."
    ]


def _flagged(rows: Sequence[Row]) -> list[str]:
    by_flag: dict[Flag, list[Row]] = {}
    for row in rows:
        for flag in row.flags:
            by_flag.setdefault(flag, []).append(row)
    return [f"{plain_line(flag)}: {FLAGS[flag]} ({_cell_counts(members)})." for flag, members in by_flag.items()]


def _cell_counts(rows: Sequence[Row]) -> str:
    cells: dict[str, int] = {}
    for row in rows:
        cells[row.variant] = cells.get(row.variant, 0) + 1
    return ", ".join(f"{plain_line(name)} in {plural(count, 'cell', 'cells')}" for name, count in cells.items())


def _no_energy(records: Sequence[RunRecord]) -> list[str]:
    reasons = variants_by(records, lambda record: record.no_energy.reason if record.no_energy else None)
    return [
        f"{names(variants)}: no energy: {plain_line(reason, longest=REASON_LENGTH)}."
        for reason, variants in reasons.items()
    ]


SMALLEST_CHANGE = 0.01
LARGEST_P = 0.01


@dataclass(frozen=True)
class Drift:
    """A trend that all variants share."""

    change: float
    """Relative change of the latency over the whole time: 0.02 is 2 % slower at the end."""
    span_s: float
    p: float
    """Two-sided, for no trend."""


def find_drift(records: Sequence[RunRecord]) -> Drift | None:
    """Return the trend if it exceeds 1 % over the whole time and is significant (p < 0.01).

    The model is a straight line through the logarithms of the medians over time, with a level of its own for every
    variant and cell (analysis of covariance): slope = sum(t y) / sum(t t) of the deviations from each group's means.
    """
    groups: dict[tuple[str, CellKey], list[tuple[float, float]]] = defaultdict(list)
    for record in records:
        for key, cell in zip(keys_of(record), record.cells, strict=True):
            if cell.status == "ok" and cell.timed_at and cell.samples:
                latency_s = statistics.median(sample.latency_s for sample in cell.samples)
                groups[record.variant.name, key].append((cell.timed_at[0], math.log(latency_s)))
    moments = [moment for points in groups.values() for moment, _ in points]
    freedom = len(moments) - len(groups) - 1
    if freedom < 1:
        return None
    deviations = [pair for points in groups.values() for pair in _from_means(points)]
    spread = sum(moment * moment for moment, _ in deviations)
    if spread == 0:
        return None
    slope = sum(moment * log for moment, log in deviations) / spread
    rest = sum((log - slope * moment) ** 2 for moment, log in deviations)
    error = math.sqrt(rest / freedom / spread)
    p = float(2 * stdtr(freedom, -abs(slope) / error)) if error else 0.0
    span_s = max(moments) - min(moments)
    change = math.expm1(slope * span_s)
    return Drift(change, span_s, p) if abs(change) > SMALLEST_CHANGE and p < LARGEST_P else None


def _from_means(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    middle, level = (statistics.fmean(values) for values in zip(*points, strict=True))
    return [(moment - middle, log - level) for moment, log in points]
