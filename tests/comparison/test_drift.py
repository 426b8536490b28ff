"""Drift of the machine over a sweep, on synthetic sweeps with a known trend per round."""

from __future__ import annotations

import pytest

from benchmarker.report.caveats import find_drift
from benchmarker.report.compare import to_markdown
from benchmarker.workloads.generation.record import GenerationRecord
from tests.records import cell, compare_records, record

MINUTE_S = 60.0
NOISE = (1.001, 0.998, 1.002, 0.999, 1.0, 1.001, 0.999, 1.0, 0.998, 1.002)


def sweep(*, per_round: float) -> list[GenerationRecord]:
    """Return five interleaved rounds of two variants, one minute per cell; each round is slower by `per_round`."""
    records = []
    for position, noise in enumerate(NOISE):
        number, quant = divmod(position, 2)
        latency_s = (1.0, 2.0)[quant] * noise * (1 + per_round) ** number
        timed_cell = cell([latency_s], timed_at=(position * MINUTE_S, position * MINUTE_S + 10))
        records.append(record(("fp16", "int8")[quant], timed_cell, round_number=number))
    return records


def test_slowing_machine_has_a_caveat_with_the_change() -> None:
    drift = find_drift(sweep(per_round=0.01))
    assert drift
    assert drift.change == pytest.approx(0.046, abs=0.01)
    assert drift.span_s == 9 * MINUTE_S
    output = to_markdown(compare_records(sweep(per_round=0.01)))
    assert "drift: from the first cell to the last, about 9 min, everything became 4." in output


def test_noise_is_no_drift() -> None:
    assert find_drift(sweep(per_round=0.0)) is None


def test_small_trend_is_no_drift() -> None:
    assert find_drift(sweep(per_round=0.0005)) is None


def test_single_round_has_no_drift() -> None:
    assert find_drift(sweep(per_round=0.01)[:2]) is None
