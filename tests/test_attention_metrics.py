"""Rates, growth and crossings of attention."""

import pytest

from benchmarker.core.stats import Ratio
from benchmarker.schema.roofline import Limits
from benchmarker.workloads.attention.metrics import (
    Crossing,
    crossings,
    growth,
    local_exponents,
    share_of_matmul,
    tflops_per_s,
)
from benchmarker.workloads.attention.words import (
    Call,
    always_in_words,
    crossing_in_words,
    does_not_fit,
    exponents_in_words,
    growth_in_words,
    what_limits,
)

LIMITS = Limits(
    read_bytes_per_s=3e12,
    copy_bytes_per_s=2.5e12,
    array_bytes=2**31,
    matmul_flops_per_s=700e12,
    matmul_dtype="bfloat16",
    matmul_size=8192,
)


def ratio(value, low=None, high=None):
    return Ratio(value, rounds=3, low=low, high=high)


def call(**values):
    return Call(
        **{
            "latency_s": 1e-3,
            "flops": 1,
            "bytes": 1,
            "scores_moved_bytes": None,
            "kernel_s": None,
            "dtype": "bfloat16",
            **values,
        }
    )


def test_the_rate_is_the_formulas_operations_over_the_time():
    assert tflops_per_s(34_359_738_368, 5.873e-3) == pytest.approx(5.85, abs=0.01)
    assert share_of_matmul(350 * 10**12, 1.0, 700e12) == 0.5


def test_the_exponent_of_a_doubling_is_its_binary_logarithm():
    exponents = local_exponents([(2048, 4.0), (1024, 1.0), (4096, 8.0)])
    assert [one.value for one in exponents] == pytest.approx([2.0, 1.0])
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
    assert always_in_words("flash", "naive", ratios) == (
        "flash is faster than naive at all measured lengths, from 1,024 to 4,096"
    )
    assert always_in_words("flash", "naive", [*ratios, (8192, ratio(1.0, 0.9, 1.1))]) is None


def test_naive_is_bound_by_what_its_scores_move():
    words = what_limits(call(scores_moved_bytes=round(0.77e-3 * 3e12)), LIMITS)
    assert words.startswith("bound by bandwidth: 77 % of its time is what moving")


def test_a_tiny_call_is_bound_by_the_host():
    words = what_limits(call(latency_s=50e-6, kernel_s=5e-6), LIMITS)
    assert words == "bound by the host: its kernels run for 10 % of the time"


def test_a_call_near_the_matmul_rate_is_bound_by_compute():
    assert what_limits(call(flops=600 * 10**9, kernel_s=1e-3), LIMITS).startswith("bound by compute: 86 %")


def test_a_rate_above_the_ceiling_is_called_impossible():
    assert what_limits(call(flops=800 * 10**9), LIMITS).startswith("impossible: 114 %")


def test_a_kernel_that_is_just_slow_is_at_no_limit():
    assert what_limits(call(flops=250 * 10**9), LIMITS).startswith("at no limit: 36 % of the measured bfloat16")


def test_what_does_not_fit_says_what_it_wanted():
    assert does_not_fit("naive", 32768, 32 * 2**30, 12 * 2**30) == (
        "at 32,768 naive does not fit: it wanted 32.00 GiB and 12.00 GiB were free"
    )
