"""Coverage of the interval and error rates of the verdict on simulated sweeps with a known true ratio.

A simulated time is the true time, times noise per process (0.5 or 1 %), times noise per repeat (0.5 %, one in five
with a tail to the right, as timings have), times a slow drift over the session. The order is that of a sweep:
both variants once per round, reversed in odd rounds.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarker.core.stats import Ratio, paired_ratio, verdicts

SWEEPS, ROUNDS, REPEATS = 2000, 5, 5
INTERLEAVED = np.array([[0, 1], [3, 2], [4, 5], [7, 6], [8, 9]])
"""Slot in the session of each round's baseline and variant."""
SEQUENTIAL = np.array([[0, 5], [1, 6], [2, 7], [3, 8], [4, 9]])


def sweeps(true_ratio: float, *, noise: float, drift: float, slots: np.ndarray = INTERLEAVED) -> list[Ratio]:
    """Return the ratios of 2,000 simulated sweeps."""
    random = np.random.default_rng(20260301)
    process = random.normal(0, noise, (SWEEPS, ROUNDS, 2))
    repeat = random.normal(0, 0.005, (SWEEPS, ROUNDS, 2, REPEATS))
    tail = random.exponential(0.01, repeat.shape) * (random.random(repeat.shape) < 0.2)
    true_log = np.array([0.0, -np.log(true_ratio)])
    session = drift * slots / slots.max()
    medians = np.exp(np.median((true_log + process + session)[..., None] + repeat + tail, axis=-1))
    return [paired_ratio(dict(enumerate(times[:, 0])), dict(enumerate(times[:, 1]))) for times in medians.astype(float)]


def covered(ratios: list[Ratio], true_ratio: float) -> float:
    return float(np.mean([ratio.low <= true_ratio <= ratio.high for ratio in ratios]))


def share(ratios: list[Ratio], verdict: str) -> float:
    """Return the fraction of one-row tables with this verdict."""
    return float(np.mean([verdicts([ratio]) == [verdict] for ratio in ratios]))


@pytest.mark.parametrize("drift", [0.0, 0.02])
@pytest.mark.parametrize("noise", [0.005, 0.01])
@pytest.mark.parametrize("true_ratio", [1.0, 1.03])
def test_interval_covers_the_true_ratio_in_95_percent_of_sweeps(true_ratio, noise, drift):
    assert 0.93 <= covered(sweeps(true_ratio, noise=noise, drift=drift), true_ratio) <= 0.97


@pytest.mark.parametrize("drift", [0.0, 0.02])
def test_identical_variants_have_the_verdict_same(drift):
    ratios = sweeps(1.0, noise=0.005, drift=drift)
    assert share(ratios, "same") >= 0.90
    assert share(ratios, "faster") + share(ratios, "slower") <= 0.05


@pytest.mark.parametrize("drift", [0.0, 0.02])
def test_true_speed_up_of_3_percent_is_found(drift):
    assert share(sweeps(1.03, noise=0.005, drift=drift), "faster") >= 0.90


def test_drift_biases_sweeps_that_are_not_interleaved():
    ratios = sweeps(1.0, noise=0.005, drift=0.02, slots=SEQUENTIAL)
    assert covered(ratios, 1.0) < 0.60


def test_false_verdicts_in_tables_of_twenty_equal_variants_are_rare():
    ratios = sweeps(1.0, noise=0.02, drift=0.0)
    tables = [verdicts(ratios[start : start + 20]) for start in range(0, SWEEPS, 20)]
    false_verdicts = sum(any(verdict in ("faster", "slower") for verdict in table) for table in tables)
    assert false_verdicts <= 10
