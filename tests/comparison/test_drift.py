"""A machine that becomes slower is named; chance, and a variant that is slower, are not."""

from __future__ import annotations

import pytest

from benchmarker.report.caveats import find_drift
from benchmarker.report.compare import to_markdown
from benchmarker.workloads.generation.record import GenerationRecord
from tests.records import cell, compare_records, record

MINUTE_S = 60.0
CHANCE = (1.001, 0.998, 1.002, 0.999, 1.0, 1.001, 0.999, 1.0, 0.998, 1.002)


def sweep(*, per_round: float) -> list[GenerationRecord]:
    """Five rounds of two variants in turns, a minute each; every round takes so much longer than the one before."""
    found = []
    for position, chance in enumerate(CHANCE):
        number, quant = divmod(position, 2)
        latency_s = (1.0, 2.0)[quant] * chance * (1 + per_round) ** number
        one = cell([latency_s], timed_at=(position * MINUTE_S, position * MINUTE_S + 10))
        found.append(record(("fp16", "int8")[quant], one, round_number=number))
    return found


def test_a_machine_that_becomes_slower_is_said_with_how_much() -> None:
    drift = find_drift(sweep(per_round=0.01))
    assert drift
    assert drift.change == pytest.approx(0.046, abs=0.01)
    assert drift.span_s == 9 * MINUTE_S
    shown = to_markdown(compare_records(sweep(per_round=0.01)))
    assert "drift: from the first cell to the last, about 9 min, everything became 4." in shown


def test_chance_alone_is_no_drift() -> None:
    assert find_drift(sweep(per_round=0.0)) is None


def test_a_trend_too_small_to_matter_is_not_mentioned() -> None:
    assert find_drift(sweep(per_round=0.0005)) is None


def test_one_round_cannot_drift() -> None:
    assert find_drift(sweep(per_round=0.01)[:2]) is None
