"""Statistics compared with scipy.stats, R, or a calculation by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as reference

from benchmarker.core.stats import (
    Ratio,
    deviation,
    estimate,
    geometric_mean,
    holm,
    paired_ratio,
    unpaired_ratio,
    verdict,
    verdicts,
    wilson,
)

BASELINE = {0: 1.380, 1: 1.395, 2: 1.371, 3: 1.402, 4: 1.388}
VARIANT = {0: 0.752, 1: 0.771, 2: 0.749, 3: 0.760, 4: 0.765}


def test_reciprocal_ratios_cancel_in_the_geometric_mean():
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)


def test_deviation_is_the_sample_standard_deviation():
    assert deviation([1.0, 2.0, 3.0, 4.0]) == pytest.approx(1.2909944487)
    assert deviation([1.0]) is None


def test_estimate_has_a_t_interval_on_logarithms():
    logs = np.log(list(BASELINE.values()))
    low, high = reference.t.interval(0.95, df=4, loc=logs.mean(), scale=reference.sem(logs))

    result = estimate(list(BASELINE.values()))

    assert (result.value, result.low, result.high) == pytest.approx(
        (math.exp(logs.mean()), math.exp(low), math.exp(high))
    )


def test_two_rounds_have_no_interval():
    assert estimate([1.0, 1.1]).low is None


def test_paired_ratio_is_a_t_test_on_log_differences():
    difference = np.log(list(BASELINE.values())) - np.log(list(VARIANT.values()))
    expected = reference.ttest_1samp(difference, 0.0)
    interval = expected.confidence_interval(0.95)

    result = paired_ratio(BASELINE, VARIANT)

    assert result.value == pytest.approx(math.exp(difference.mean()))
    assert (result.low, result.high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))
    assert result.p == pytest.approx(expected.pvalue)
    assert result.rounds == 5


def test_only_common_rounds_are_paired():
    result = paired_ratio({0: 2.0, 1: 2.2, 2: 2.1, 7: 99.0}, {0: 1.0, 1: 1.1, 2: 1.05, 8: 1e-9})
    assert (result.value, result.rounds) == (pytest.approx(2.0), 3)


def test_common_slowdown_of_a_round_cancels():
    slowdown = [1.0, 1.0, 1.3, 1.6, 2.0]
    baseline = {number: 2.0 * factor for number, factor in enumerate(slowdown)}
    variant = {number: 1.0 * factor for number, factor in enumerate(slowdown)}
    result = paired_ratio(baseline, variant)
    assert (result.low, result.high) == pytest.approx((2.0, 2.0))


def test_fewer_than_three_common_rounds_are_not_tested():
    result = paired_ratio({0: 2.0, 1: 2.0}, {0: 1.0, 1: 1.0})
    assert result == Ratio(pytest.approx(2.0), rounds=2)


def test_sweeps_without_common_rounds_are_not_paired():
    unpaired = paired_ratio({0: 2.0, 1: 2.2, 2: 1.9}, {3: 1.0, 4: 1.1, 5: 1.3})
    assert unpaired == unpaired_ratio([2.0, 2.2, 1.9], [1.0, 1.1, 1.3])
    assert unpaired.rounds == 3


def _detectable(standard_error, freedom, tests=1):
    return Ratio(1.0, rounds=3, standard_error=standard_error, freedom=freedom).detectable(tests)


@pytest.mark.parametrize("tests", [1, 4, 20])
def test_detectable_ratio_includes_holms_correction(tests):
    ratio = unpaired_ratio([1.00, 1.01, 1.02], [1.00, 1.02, 1.03])
    noncentrality = math.log(ratio.detectable(tests)) / ratio.standard_error
    critical = reference.t.ppf(1 - 0.025 / tests, ratio.freedom)
    assert reference.nct.sf(critical, ratio.freedom, noncentrality) == pytest.approx(0.80, abs=1e-4)
    assert Ratio(2.0, rounds=2).detectable(tests) is None


@pytest.mark.parametrize("tests", [1, 4, 100])
@pytest.mark.parametrize("freedom", [2, 2.7, 4, 9, 60])
def test_detectable_ratio_has_80_percent_power(freedom, tests):
    noncentrality = math.log(_detectable(0.02, freedom, tests)) / 0.02
    critical = reference.t.ppf(1 - 0.025 / tests, freedom)
    assert reference.nct.sf(critical, freedom, noncentrality) == pytest.approx(0.80, abs=1e-9)


def test_unpaired_ratio_is_welchs_t_test_on_logarithms():
    before, after = [1.00, 1.02, 0.99, 1.01, 1.00], [1.10, 1.16, 1.07, 1.12]
    expected = reference.ttest_ind(np.log(before), np.log(after), equal_var=False)
    interval = expected.confidence_interval(0.95)

    result = unpaired_ratio(before, after)

    assert (result.low, result.high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))
    assert (result.p, result.rounds) == (pytest.approx(expected.pvalue), 4)


def test_identical_rounds_have_an_interval_of_zero_width():
    same = paired_ratio({0: 1.0, 1: 1.0, 2: 1.0}, {0: 1.0, 1: 1.0, 2: 1.0})
    assert (same.low, same.high, same.p) == (1.0, 1.0, 1.0)
    twice = unpaired_ratio([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    assert (twice.low, twice.high, twice.p) == (pytest.approx(2.0), pytest.approx(2.0), 0.0)


def test_holm_agrees_with_r():
    # p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") in R.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(("rounds", "percent"), [(3, 1.6), (5, 0.8), (10, 0.5)])
def test_detectable_ratio_falls_with_the_number_of_rounds(rounds, percent):
    # The three percentages were computed by another program for the measuring protocol.
    result = _detectable(0.005 / math.sqrt(rounds), rounds - 1)
    assert 100 * (result - 1) == pytest.approx(percent, abs=0.06)


@pytest.mark.parametrize("rounds", [3, 5, 10])
def test_detectable_ratio_at_5_permille_spread_has_80_percent_power(rounds):
    error = 0.005 / math.sqrt(rounds)
    noncentrality = math.log(_detectable(error, rounds - 1)) / error
    critical = reference.t.ppf(0.975, rounds - 1)
    assert reference.nct.sf(critical, rounds - 1, noncentrality) == pytest.approx(0.80, abs=1e-4)


@pytest.mark.parametrize(
    ("value", "low", "high", "p", "expected"),
    [
        (1.83, 1.79, 1.87, 0.001, "faster"),
        (0.61, 0.60, 0.62, 0.001, "slower"),
        (1.00, 0.985, 1.015, 0.9, "same"),
        (1.01, 1.005, 1.015, 0.001, "same"),  # significant, but within the band of 2 %
        (1.03, 0.98, 1.08, 0.3, "inconclusive"),
        (1.015, 1.005, 1.025, 0.01, "inconclusive"),  # significant, but the interval extends beyond the band
        (1.05, 1.01, 1.09, 0.06, "inconclusive"),  # excludes 1, but p is not significant after the correction
    ],
)
def test_verdict_requires_significance_and_size(value, low, high, p, expected):
    assert verdict(Ratio(value, rounds=5, low=low, high=high, p=p), p) == expected


def test_large_ratio_of_two_rounds_is_not_tested():
    assert verdict(Ratio(4.0, rounds=2), None) == "not tested"


def test_one_small_p_among_twenty_rows_is_not_significant():
    lucky = Ratio(1.05, rounds=5, low=1.01, high=1.09, p=0.02)
    others = [Ratio(1.0, rounds=5, low=0.9, high=1.1, p=0.5)] * 19
    assert verdicts([lucky])[0] == "faster"
    assert verdicts([lucky, *others])[0] == "inconclusive"


def test_untested_rows_do_not_count_in_the_correction():
    clear = Ratio(1.05, rounds=5, low=1.01, high=1.09, p=0.03)
    assert verdicts([Ratio(2.0, rounds=1), clear, Ratio(2.0, rounds=1)]) == ["not tested", "faster", "not tested"]


def test_wilsons_interval_equals_published_values():
    # 0 of 10: the upper end is z^2 / (10 + z^2).
    assert wilson(0, 10) == pytest.approx((0.0, 0.0, 0.2775), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.5, 0.2366, 0.7634), abs=1e-4)
