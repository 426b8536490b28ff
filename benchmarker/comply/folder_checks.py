"""Checks of a sweep's records: execution order, and false verdicts when the signs of the differences are random."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from benchmarker.comparison.rows import Results, cell_words, grouped
from benchmarker.core.formatting import percent, plural
from benchmarker.core.stats import paired_ratio, verdicts
from benchmarker.schema.comply_file import Finding, judged, not_applicable
from benchmarker.schema.record import RunRecord
from benchmarker.schema.record_io import RUN_ORDER, OrderLine, read_order
from benchmarker.sweep.resume import SweepFile, read_sweep_file
from benchmarker.sweep.sweep_plan import order

FLIPS = 1_000
SEED = 1
LEAST_ROUNDS = 6
MOST_FALSE = 0.05
ORDER_CHECK, FLIP_CHECK = "order of execution", "false verdicts"


def check_order(folder: Path, records: Sequence[RunRecord]) -> Finding:
    """Check that each device ran one process at a time and rounds in sequence, that each round ran in the planned
    order, and that each record was written by a process of its round."""
    try:
        lines = sorted(read_order(folder), key=lambda line: line.start)
    except ValueError as error:
        return judged(ORDER_CHECK, f"{RUN_ORDER} cannot be read: {str(error).splitlines()[0]}", holds=False)
    if not lines:
        return not_applicable(ORDER_CHECK, f"the folder has no {RUN_ORDER}, which a sweep writes")
    # Devices without a UUID have equal names on several hosts.
    uuids = {record.environment.device.uuid for record in records}
    by_card = grouped(((line.device, None if line.device in uuids else line.worker), line) for line in lines)
    sweep = read_sweep_file(folder)
    faults = [fault for card in by_card.values() for fault in (*_order_faults(card), *_plan_faults(sweep, card))]
    faults += _record_faults(lines, records)
    processes = plural(len(lines), "process", "processes")
    rounds = plural(len({line.round for line in lines}), "round", "rounds")
    in_order = f"{processes} of {rounds} in the planned order, one at a time on a device"
    return judged(ORDER_CHECK, faults[0] if faults else in_order, holds=not faults)


def _order_faults(lines: Sequence[OrderLine]) -> list[str]:
    faults = []
    for before, after in pairwise(lines):
        names = f"{before.variant} of round {before.round + 1} and {after.variant} of round {after.round + 1}"
        if after.start < before.end:
            faults.append(f"{names} ran at the same time on {after.device}")
        if after.round < before.round:
            faults.append(f"{names} ran in the wrong order on {after.device}")
    return faults


def _plan_faults(sweep: SweepFile | None, lines: Sequence[OrderLine]) -> list[str]:
    if sweep is None or not sweep.variants:
        return []
    faults = []
    for number in sorted({line.round for line in lines}):
        began = list(dict.fromkeys(line.variant for line in lines if line.round == number))
        planned = [name for name in order(sweep.variants, number, sweep.seed) if name in began]
        if began != planned:
            faults.append(f"round {number + 1} ran {', '.join(began)}; planned was {', '.join(planned)}")
    return faults


def _record_faults(lines: Sequence[OrderLine], records: Sequence[RunRecord]) -> list[str]:
    """Return a message for each record written by no process of its round; its ratio would use a wrong pair."""
    return [
        f"no process of round {record.round + 1} made the record {record.run_id} of {record.variant.name} in that round"
        for record in records
        if record.opened_at is not None
        and not any(
            (line.variant, line.round) == (record.variant.name, record.round)
            and line.start <= record.opened_at <= line.end
            for line in lines
        )
    ]


def check_false_verdicts(results: Results) -> list[Finding]:
    """Check that at most 5 % of random sign patterns of a variant's log ratios give a verdict.

    The log ratios of the rounds are centred, so that the true ratio is 1 and the verdicts "faster" and "slower" are
    false.
    """
    times = {(row.variant, row.cell): row.time_by_round for row in results.rows}
    findings, untested = [], []
    for row in results.rows:
        if row.speed_up is None:
            continue
        reference = times[row.speed_up.reference, row.cell]
        logs = [math.log(reference[key] / row.time_by_round[key]) for key in reference if key in row.time_by_round]
        if len(logs) < LEAST_ROUNDS:
            untested.append(len(logs))
            continue
        share = false_share(logs, random.Random(SEED))
        text = f"{percent(share)} of {FLIPS} random sign patterns are faster or slower; limit {percent(MOST_FALSE)}"
        text = f"{cell_words(row.cell)}: {text}"
        findings.append(judged(FLIP_CHECK, text, holds=share <= MOST_FALSE, variant=row.variant))
    if untested:
        at_most = "at most " if len(set(untested)) > 1 else ""
        rounds = at_most + plural(max(untested), "paired round", "paired rounds")
        rows = plural(len(untested), "row", "rows")
        findings.append(not_applicable(FLIP_CHECK, f"not testable for {rows} of {rounds}: it needs {LEAST_ROUNDS}"))
    return findings


def false_share(logs: Sequence[float], random_signs: random.Random) -> float:
    centre = statistics.fmean(logs)
    centred = [value - centre for value in logs]
    called = 0
    for _ in range(FLIPS):
        signed = {number: math.exp(random_signs.choice((-1, 1)) * value) for number, value in enumerate(centred)}
        verdict = verdicts([paired_ratio(signed, dict.fromkeys(signed, 1.0))])[0]
        called += verdict in ("faster", "slower")
    return called / FLIPS
