from __future__ import annotations

import pytest

from benchmarker.core.units import GIB, gib, seconds, significant


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (7.59 * GIB, "7.59 GiB"),
        (8_044_936_192, "7.49 GiB"),
        (3.2 * 2**20, "3.2 MiB"),
        (0, "0.0 MiB"),
        (None, "–"),
    ],
)
def test_memory_is_in_gib_and_says_so(size_bytes, text):
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
def test_seconds_take_the_unit_that_keeps_their_digits(duration_s, text):
    assert seconds(duration_s) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(36.15, "36.15"), (1204.4, "1204"), (0.0312, "0.0312"), (7.1, "7.100"), (0, "0"), (None, "–")],
)
def test_a_number_is_a_plain_decimal_with_four_digits(number, text):
    assert significant(number) == text
