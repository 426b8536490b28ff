"""What two printed tables of an attention, before and after, say together."""

from pathlib import Path

import pytest

from benchmarker.profiling.printed_table import read_tables
from benchmarker.workloads.attention.log_verdict import attention_sentences, fused_in, unfused_in

LOG = Path(__file__).parents[2] / "data" / "attention-two-profiles.txt"


@pytest.fixture
def text():
    return LOG.read_text()


def sentences(text):
    return "\n".join(attention_sentences(read_tables(text), text))


def test_the_scores_that_are_gone_are_counted_from_the_softmax(text):
    before = unfused_in(read_tables(text)[0])
    assert before.scores_bytes == 2 * 2**30
    assert "200.00 GiB of scores in 100 calls" in sentences(text)


def test_the_first_is_bound_by_the_bandwidth_that_its_softmax_reached(text):
    before = unfused_in(read_tables(text)[0])
    assert before.softmax_bytes_per_s == pytest.approx(333e9, rel=0.01)
    assert before.moving_s == pytest.approx(38.7e-3, rel=0.01)
    assert "takes 38.67 ms of 50.25 ms (77 %)" in sentences(text)


def test_both_rates_are_by_the_count_that_the_log_has_for_one(text):
    assert "34.36 GFLOP a call for the first and none for the fused kernel" in sentences(text)
    assert "0.68 and 5.85 TFLOP/s" in sentences(text)


def test_the_rotary_part_is_now_a_quarter(text):
    after = fused_in(read_tables(text)[1])
    assert after.rotary_s * after.calls == pytest.approx(0.142417)
    assert "are now 1.42 ms of 5.87 ms (24 %)" in sentences(text)


def test_the_ratio_that_is_claimed_is_none_of_the_tables_own(text):
    assert "claims 8.53; its tables give 8.56 in device time and 9.28 in CPU time" in sentences(text)


def test_a_claim_that_is_the_tables_own_ratio_is_not_doubted(text):
    assert "another way" not in sentences(text.replace("8.529960957392634", "8.56"))


def test_what_is_not_to_be_added_up_is_named(text):
    assert "aten::repeat_interleave hold those of the operators that they called" in sentences(text)
    assert "15.17 ms of device time at cudaLaunchKernel are the profiler's own" in sentences(text)


def test_what_no_table_tells_is_said(text):
    assert "whether both compute the same" in sentences(text)


def test_a_text_without_such_a_pair_gives_no_sentence(text):
    first = read_tables(text)[:1]
    assert attention_sentences(first, text) == ()
    assert attention_sentences(read_tables((LOG.parent / "qlora-table.txt").read_text())) == ()


def test_flops_of_a_printed_row_are_read_in_the_unit_of_their_column(text):
    products = next(row for row in read_tables(text)[0].rows if row.name == "aten::bmm")
    assert products.flops == pytest.approx(3435973.837e6)
    softmax = next(row for row in read_tables(text)[0].rows if row.name == "aten::_softmax")
    assert softmax.flops is None
