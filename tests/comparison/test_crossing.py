"""Crossings between measured sizes and interpolated crossovers, on ratios with given intervals."""

import pytest

from benchmarker.comparison.crossing import Crossing, SizeWords, constant_verdict, crossings, crossover, inverse
from benchmarker.comparison.speed_up import SpeedUp
from benchmarker.core.stats import Ratio


def ratio(value, low=None, high=None):
    return Ratio(value, rounds=3, low=low, high=high)


def within(value, factor):
    return ratio(value, value / factor, value * factor)


def by_interval(ratios, reference="fp16"):
    """Speed-ups whose verdicts are those of their own intervals, as if each were the only test."""
    verdicts = {
        size: "inconclusive" if each.low <= 1 <= each.high else "faster" if each.value > 1 else "slower"
        for size, each in ratios.items()
    }
    return {size: SpeedUp(reference, each, verdicts[size]) for size, each in ratios.items()}


def decided(size, verdict):
    return size, SpeedUp("fp16", ratio(2.0, 1.9, 2.1), verdict)


def test_crossing_lies_between_adjacent_measured_sizes():
    ratios = [decided(256, "slower"), decided(1024, "faster"), decided(512, "faster")]
    assert crossings(ratios) == (Crossing(256, 512, "faster"),)


def test_undecided_size_widens_the_crossing():
    ratios = [decided(256, "slower"), decided(512, "inconclusive"), decided(1024, "faster")]
    assert crossings(ratios) == (Crossing(256, 1024, "faster"),)


def test_untested_sizes_have_no_crossing():
    ratios = [decided(256, "not tested"), decided(512, "not tested")]
    assert crossings(ratios) == ()
    assert constant_verdict(ratios) is None


def test_constant_verdict_requires_the_same_verdict_at_every_size():
    ratios = [decided(1024, "faster"), decided(4096, "faster")]
    assert constant_verdict(ratios) == "faster"
    assert constant_verdict([*ratios, decided(8192, "same")]) is None
    assert constant_verdict([*ratios, decided(8192, "slower")]) is None
    assert constant_verdict([]) is None


def test_crossover_is_interpolated_on_logarithms_with_its_interval():
    # ln r falls from ln 2 at size 1 to -ln 2 at size 64 and is 0 at size 8.
    ratios = {1: within(2.0, 2 ** (1 / 3)), 64: within(0.5, 2 ** (1 / 3))}
    fall = crossover(ratios)
    assert (fall.size, fall.low, fall.high) == pytest.approx((8, 4, 16))
    wide = crossover({1: within(1.1, 1.2), 64: within(0.9, 1.2)})
    assert (wide.low, wide.high) == (None, None)
    assert crossover({1: within(0.9, 1.0), 64: within(1.2, 1.0)}) is None
    assert crossover({1: within(1.2, 1.0)}) is None
    # The inverse rises at the same size.
    assert crossover(inverse(ratios)) is None
    assert crossover(inverse(inverse(ratios))).size == pytest.approx(8)


def test_sentence_prints_intervals_of_undecided_and_wide_ratios():
    ratios = {1: within(2.0, 1.2), 2: within(1.1, 1.2), 4: within(5.0, 2.0)}
    size_words = SizeWords("int8 wins", "batch", "", "", by_interval(ratios))
    assert size_words.sentence() == (
        "int8 wins at 1 (2.00x), 4 (wide [2.50, 10.00]); at 2 (1.10x [0.92, 1.32]) it is not decided"
    )


def test_sentence_on_untested_ratios_mentions_the_missing_interval():
    ratios = {1: Ratio(2.0, rounds=2), 8: Ratio(1.5, rounds=2)}
    untested = {size: SpeedUp("fp16", each, "not tested") for size, each in ratios.items()}
    size_words = SizeWords("int8 wins", "batch", "", "", untested)
    assert size_words.sentence() == (
        "int8 wins at every batch, from 1 (2.00x) to 8 (1.50x) (no interval: fewer than three rounds)"
    )
    mixed = {1: untested[1], 2: SpeedUp("fp16", within(1.1, 1.2), "inconclusive"), 8: untested[8]}
    assert SizeWords("int8 wins", "batch", "", "", mixed).sentence() == (
        "int8 wins at 1 (2.00x), 8 (1.50x) (no interval: fewer than three rounds); at 2 (1.10x [0.92, 1.32]) it is not "
        "decided"
    )


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        # An interval that excludes 1 decides nothing if Holm's correction leaves the ratio inconclusive.
        (("faster", "inconclusive"), "int8 wins at 1 (2.00x); at 8 (2.00x [1.90, 2.10]) it is not decided"),
        (("faster", "same"), "int8 wins at 1 (2.00x); at 8 (2.00x [1.90, 2.10]) both are equally fast"),
        (("same", "same"), "int8 wins at no batch; at 1 (2.00x [1.90, 2.10]), 8 (2.00x [1.90, 2.10]) both are equally"),
        (("inconclusive", "same"), "it is not decided whether int8 wins: 1 (2.00x [1.90, 2.10]); at 8 (2.00x"),
    ],
)
def test_a_sentence_has_the_verdicts_of_the_tables(verdicts, sentence):
    words = SizeWords("int8 wins", "batch", "", "", dict(map(decided, (1, 8), verdicts)))
    assert words.sentence().startswith(sentence)
