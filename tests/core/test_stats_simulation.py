"""Sweeps whose true answer is known: does the interval cover it, and is the verdict right?

A simulated time is the true one, times the process's own luck (0.5 or 1 %), times each repeat's (0.5 %, one in five
with a tail to the right, as timings have), times a slow drift over the session. The order of a sweep is kept:
both variants once a round, the order reversed on odd rounds.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarker.core.stats import Ratio, paired_ratio, verdicts

SWEEPS, ROUNDS, REPEATS = 2000, 5, 5
INTERLEAVED = np.array([[0, 1], [3, 2], [4, 5], [7, 6], [8, 9]])
"""Slot in the session of each round's baseline and variant."""
ONE_AFTER_THE_OTHER = np.array([[0, 5], [1, 6], [2, 7], [3, 8], [4, 9]])


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
    """Return how often a table of this one row would have this verdict."""
    return float(np.mean([verdicts([ratio]) == [verdict] for ratio in ratios]))


@pytest.mark.parametrize("drift", [0.0, 0.02])
@pytest.mark.parametrize("noise", [0.005, 0.01])
@pytest.mark.parametrize("true_ratio", [1.0, 1.03])
def test_the_interval_covers_the_truth_in_95_of_100_sweeps(true_ratio, noise, drift):
    assert 0.93 <= covered(sweeps(true_ratio, noise=noise, drift=drift), true_ratio) <= 0.97


@pytest.mark.parametrize("drift", [0.0, 0.02])
def test_identical_variants_are_called_the_same(drift):
    ratios = sweeps(1.0, noise=0.005, drift=drift)
    assert share(ratios, "same") >= 0.90
    assert share(ratios, "faster") + share(ratios, "slower") <= 0.05


@pytest.mark.parametrize("drift", [0.0, 0.02])
def test_a_true_three_percent_is_found(drift):
    assert share(sweeps(1.03, noise=0.005, drift=drift), "faster") >= 0.90


def test_drift_biases_sweeps_that_are_not_interleaved():
    ratios = sweeps(1.0, noise=0.005, drift=0.02, slots=ONE_AFTER_THE_OTHER)
    assert covered(ratios, 1.0) < 0.60


def test_a_table_of_twenty_identical_variants_rarely_names_one_as_different():
    ratios = sweeps(1.0, noise=0.02, drift=0.0)
    tables = [verdicts(ratios[start : start + 20]) for start in range(0, SWEEPS, 20)]
    wrong = sum(any(verdict in ("faster", "slower") for verdict in table) for table in tables)
    assert wrong <= 10
