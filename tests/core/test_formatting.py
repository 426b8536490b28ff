"""Text of numbers, memory and durations."""

from __future__ import annotations

import pytest

from benchmarker.core.formatting import GIB, gib, range_text, seconds, significant, times, with_spread
from benchmarker.core.stats import Estimate, Ratio


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (7.59 * GIB, "7.59 GiB"),
        (8_044_936_192, "7.49 GiB"),
        (3.2 * 2**20, "3.2 MiB"),
        (0.08 * GIB, "81.9 MiB"),
        (0, "0.0 MiB"),
        (None, "–"),
    ],
)
def test_memory_is_in_gib_or_mib(size_bytes, text):
    assert gib(size_bytes) == text


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (1.3832, "1.3832 s"),
        (37.123, "37.12 s"),
        (165.4, "165 s"),
        (0.02731, "27.31 ms"),
        (4.1e-6, "4.10 us"),
        (None, "–"),
    ],
)
def test_durations_are_in_seconds_milliseconds_or_microseconds(duration_s, text):
    assert seconds(duration_s) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(36.15, "36.15"), (1204.4, "1204"), (0.0312, "0.0312"), (7.1, "7.100"), (0, "0"), (None, "–")],
)
def test_numbers_have_four_significant_digits(number, text):
    assert significant(number) == text


@pytest.mark.parametrize(
    ("measured", "text"),
    [
        (Estimate(36.1523, deviation=0.0312), "36.15 ± 0.03"),
        (Estimate(36.1523, deviation=0.0041), "36.152 ± 0.004"),
        (Estimate(36.1523, deviation=0.0), "36.15 ± 0.00"),
        (Estimate(36.1523), "36.15"),
        (Estimate(36.15, low=36.02, high=36.28, deviation=0.1), "36.15 [36.02, 36.28]"),
        (Estimate(1204.4, deviation=12.3), "1204 ± 12"),
        (None, "–"),
    ],
)
def test_estimates_have_four_digits_and_their_spread(measured, text):
    assert with_spread(measured) == text


def test_a_range_of_equal_texts_is_one_text():
    assert range_text(["35", "41", "159"]) == "35 to 159"
    assert range_text(["45", "45"]) == range_text(["45"]) == "45"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (Ratio(1.834, rounds=5, low=1.791, high=1.872), "1.83x [1.79, 1.87]"),
        (Ratio(0.612, rounds=1), "0.61x"),
        (Ratio(0.0213, rounds=1), "0.021x"),
        (Ratio(21.34, rounds=1), "21.3x"),
    ],
)
def test_ratios_end_with_x(ratio, text):
    assert times(ratio) == text
