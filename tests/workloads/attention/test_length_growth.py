"""Growth of the time with the length, and sentences on crossings."""

import pytest

from benchmarker.comparison.speed_up import SpeedUp
from benchmarker.core.stats import Ratio
from benchmarker.workloads.attention.attention_reading import always_text, exponents_text, growth


def decided(length, verdict):
    return length, SpeedUp("naive", Ratio(2.0, 3, 1.9, 2.1), verdict)


def test_exponent_of_a_doubling_is_the_binary_logarithm():
    times = [(2048, 4.0), (1024, 1.0), (4096, 8.0)]
    assert exponents_text(times) == "S^2.00 from 1,024 to 2,048, S^1.00 from 2,048 to 4,096"


def test_fit_separates_the_exponent_from_a_fixed_cost():
    fit = growth([(length, 10e-6 + 2e-9 * length) for length in (256, 512, 1024, 2048, 4096)])
    assert fit.exponent == pytest.approx(1.0, abs=0.01)
    assert fit.fixed_s == pytest.approx(10e-6, rel=0.02)
    assert "S^1.00 over 5 lengths" in str(fit)


def test_fit_has_no_negative_fixed_cost():
    fit = growth([(length, 1e-9 * length**2 - 1e-5) for length in (256, 512, 1024, 2048)])
    assert fit.fixed_s == 0
    assert fit.exponent > 2


def test_three_lengths_are_too_few_for_a_fit():
    assert growth([(1, 1.0), (2, 2.0), (4, 4.0)]) is None


def test_equal_verdicts_at_all_lengths_are_one_sentence():
    ratios = [decided(1024, "faster"), decided(4096, "faster")]
    assert always_text("naive", ratios) == "faster than naive at all measured lengths, from 1,024 to 4,096"
    assert always_text("naive", [*ratios, decided(8192, "inconclusive")]) is None
    assert always_text("naive", ratios[:1]) is None
