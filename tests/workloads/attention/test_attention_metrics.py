"""Rates, growth and crossings of attention."""

import pytest

from benchmarker.core.stats import Ratio
from benchmarker.workloads.attention.metrics import (
    Crossing,
    crossings,
    growth,
    local_exponents,
    share_of_matmul,
)
from benchmarker.workloads.attention.words import (
    always_in_words,
    crossing_in_words,
    exponents_in_words,
    growth_in_words,
)


def ratio(value, low=None, high=None):
    return Ratio(value, rounds=3, low=low, high=high)


def test_the_share_is_the_formulas_operations_over_the_time_and_the_measured_rate():
    assert share_of_matmul(350 * 10**12, 1.0, 700e12) == 0.5


def test_the_exponent_of_a_doubling_is_its_binary_logarithm():
    exponents = local_exponents([(2048, 4.0), (1024, 1.0), (4096, 8.0)])
    assert [step.value for step in exponents] == pytest.approx([2.0, 1.0])
    assert exponents_in_words(exponents) == "time grows as S^2.00 from 1,024 to 2,048, S^1.00 from 2,048 to 4,096"


def test_a_fit_finds_the_exponent_behind_a_fixed_cost():
    times = [(length, 10e-6 + 2e-9 * length) for length in (256, 512, 1024, 2048, 4096)]
    fit = growth(times)
    assert fit.exponent == pytest.approx(1.0, abs=0.01)
    assert fit.fixed_s == pytest.approx(10e-6, rel=0.02)
    assert "S^1.00 over 5 lengths" in growth_in_words(fit)


def test_a_fit_never_has_a_negative_fixed_cost():
    fit = growth([(length, 1e-9 * length**2 - 1e-5) for length in (256, 512, 1024, 2048)])
    assert fit.fixed_s == 0
    assert fit.exponent > 2


def test_three_lengths_are_too_few_for_a_fit():
    assert growth([(1, 1.0), (2, 2.0), (4, 4.0)]) is None


def test_a_crossing_lies_between_neighbouring_measured_lengths():
    found = crossings([(256, ratio(0.8, 0.7, 0.9)), (1024, ratio(3, 2.9, 3.1)), (512, ratio(1.5, 1.4, 1.6))])
    assert found == (Crossing(256, 512, is_faster=True),)
    words = crossing_in_words("flash", "naive", found[0])
    assert words == "flash is faster than naive from between 256 and 512 on"


def test_an_undecided_length_widens_the_crossing():
    found = crossings([(256, ratio(0.8, 0.7, 0.9)), (512, ratio(1.0, 0.9, 1.1)), (1024, ratio(2, 1.9, 2.1))])
    assert found == (Crossing(256, 1024, is_faster=True),)


def test_a_single_round_decides_nothing():
    assert crossings([(256, ratio(0.5)), (512, ratio(2.0))]) == ()


def test_where_nothing_crosses_it_is_said_over_which_lengths():
    ratios = [(1024, ratio(2, 1.9, 2.1)), (4096, ratio(3, 2.9, 3.1))]
    assert always_in_words("naive", ratios) == "faster than naive at all measured lengths, from 1,024 to 4,096"
    assert always_in_words("naive", [*ratios, (8192, ratio(1.0, 0.9, 1.1))]) is None
