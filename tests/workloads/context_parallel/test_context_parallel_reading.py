"""Sentences on the rows of context parallel attention."""

import pytest

from benchmarker.comparison.rows import CellKey, Row
from benchmarker.core.stats import Estimate
from benchmarker.workloads.context_parallel.context_parallel_reading import brief_columns, hiding_remarks, remarks


def row(variant="zigzag", length=4096, exposed=0.01, **changes):
    key = CellKey((("ranks", 2), ("seq_len", length), ("mode", "forward")), "context_parallel")
    facts = {"exposed": exposed, **changes.pop("facts", {})}
    form = {"split": variant}
    measured = {"latency": Estimate(0.1), "facts": facts, **changes}
    return Row("context_parallel", variant, form, variant, "CPU", key, "ok", **measured)


LINK = {"needed_link": 488e9, "measured_link": 296e9}


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        (
            (0.21, 0.03, 0.01),
            "hides its communication from between 4,096 and 8,192 positions on; at 4,096, 21 % exposed; each step "
            "would need 488 GB/s, and the link gives 296.",
        ),
        ((0.0, -0.02, 0.04), "hides its communication at any measured length, from 4,096 to 16,384 positions"),
        ((0.4, 0.3, 0.2), "does not hide its communication at any measured length, from 4,096 to 16,384 positions"),
        ((0.0, 0.0, 0.2), "does not hide its communication at 16,384 positions: 20 % exposed;"),
        # Communication that is exposed at a longer length counts as exposed before it too.
        ((0.0, 0.2, 0.0), "from between 8,192 and 16,384 positions on; at 8,192, 20 % exposed"),
    ],
)
def test_the_length_from_which_on_communication_is_hidden_is_named_with_the_needed_rate(shares, expected):
    rows = [row(length=4096 << doubling, exposed=share, facts=LINK) for doubling, share in enumerate(shares)]
    (sentence,) = hiding_remarks(rows)
    assert sentence.startswith("2 ranks, forward: zigzag ")
    assert expected in sentence


def test_without_a_ring_no_rate_of_the_link_is_needed():
    (sentence,) = hiding_remarks([row("ulysses", exposed=0.3)])
    assert sentence.endswith("at 4,096 positions: 30 % exposed.")


def test_disturbed_times_give_no_sentence_on_hiding():
    assert hiding_remarks([row(exposed=-0.14, flags=("disturbed",))]) == []


def test_a_contiguous_ring_is_compared_with_the_bound_of_the_mask():
    sentences = remarks([row("ring", metrics={"scaling": Estimate(0.63)}, facts={"imbalance": 1.5})])
    assert any(
        "at most 66.7 % of 2 ranks" in line and "its scaling was 63.0 %, imbalance 1.50" in line for line in sentences
    )


def test_disagreeing_measurements_of_exposed_communication_are_named():
    (near,) = remarks([row(exposed=0.04, facts={"exposed_trace": 0.01})])
    assert "apart" not in near
    sentences = remarks([row(exposed=0.04, facts={"exposed_trace": 0.2})])
    assert "20 % exposed by the trace and 4.0 % by leaving the exchange out" in sentences[-1]


def test_the_first_table_has_scaling_and_both_measures():
    rows = [row(metrics={"scaling": Estimate(0.63)}, facts={"exposed_trace": 0.2}), row("single", exposed=0.0)]
    assert [column.heading for column in brief_columns(rows)][-3:] == ["scaling %", "exposed %", "traced %"]
