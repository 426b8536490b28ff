"""Remarks on rows of context parallel attention."""

import pytest

from benchmarker.comparison.rows import CellKey, Row
from benchmarker.core.stats import Estimate
from benchmarker.workloads.attention.spec import AttentionShape
from benchmarker.workloads.context_parallel.context_parallel_reading import brief_columns, hiding_remarks, remarks
from benchmarker.workloads.context_parallel.record import ContextParallelCell, demand_of, exposed_communication
from benchmarker.workloads.context_parallel.spec import VARIANTS
from benchmarker.workloads.context_parallel.workload import scaling
from benchmarker.workloads.operation.record import OperationSample


def row(variant="zigzag", length=4096, exposed=0.01, **changes):
    key = CellKey((("ranks", 2), ("seq_len", length), ("mode", "forward")), "context_parallel")
    facts = ({} if exposed is None else {"exposed": exposed}) | changes.pop("facts", {})
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
        # Communication that is exposed at a longer length also counts as exposed at shorter lengths.
        ((0.0, 0.2, 0.0), "from between 8,192 and 16,384 positions on; at 8,192, 20 % exposed"),
    ],
)
def test_length_that_hides_communication_is_reported_with_the_needed_rate(shares, expected):
    rows = [row(length=4096 << doubling, exposed=share, facts=LINK) for doubling, share in enumerate(shares)]
    (sentence,) = hiding_remarks(rows)
    assert sentence.startswith("2 ranks, forward: zigzag ")
    assert expected in sentence


def test_sufficient_link_is_not_given_as_the_reason():
    (sentence,) = hiding_remarks([row(exposed=0.64, facts={"needed_link": 1.34e9, "measured_link": 1.45e9})])
    assert sentence.endswith(": 64 % exposed, although each step needs only 1.34 GB/s and the link gives 1.45.")


def test_variant_without_a_ring_has_no_needed_rate():
    (sentence,) = hiding_remarks([row("ulysses", exposed=0.3)])
    assert sentence.endswith("at 4,096 positions: 30 % exposed.")


def test_disturbed_cells_have_no_shares():
    times = {"samples": (OperationSample(latency_s=0.1),), "alone_s": (0.104, 0.1), "single_s": 0.05}
    demand = demand_of(AttentionShape(1, 4096, 4, 4, 64, True, None, "float32", "forward"), 2, VARIANTS["zigzag"])
    cell = ContextParallelCell.model_construct(ranks=2, gpus=2, demand=demand, flags=(), **times)
    assert (scaling(cell, 0.1), exposed_communication(cell)) == (pytest.approx(1.0, rel=0.01), pytest.approx(-0.04))
    disturbed = cell.model_copy(update={"flags": ("disturbed",)})
    assert (scaling(disturbed, 0.1), exposed_communication(disturbed)) == (None, None)
    (sentence,) = hiding_remarks([row(exposed=None, facts={"imbalance": 1.1}, flags=("disturbed",))])
    assert sentence == "Disturbed cells have no scaling and no exposed share: zigzag."


def test_impossible_shares_have_a_reason():
    slower = ContextParallelCell.model_construct(flags=(), samples=(OperationSample(latency_s=0.1),), alone_s=(0.122,))
    assert exposed_communication(slower) is None
    (sentence,) = hiding_remarks([row(exposed=None, facts={"imbalance": 1.1})])
    assert sentence.startswith("No exposed share, because calls without the exchange took longer: zigzag at ")
    sentences = remarks([row("ring", metrics={"scaling": Estimate(1.093)})], None)
    assert sentences[-1].endswith("its scaling was 109.3 %: more than possible, because its times vary.")


def test_contiguous_ring_is_compared_with_the_bound_of_the_mask():
    sentences = remarks([row("ring", metrics={"scaling": Estimate(0.63)}, facts={"imbalance": 1.5})], None)
    assert any(
        "at most 66.7 % of 2 ranks" in line and "its scaling was 63.0 %, imbalance 1.50" in line for line in sentences
    )


def test_disagreeing_measurements_of_exposed_communication_are_reported():
    (near,) = remarks([row(exposed=0.04, facts={"exposed_trace": 0.01})], None)
    assert "apart" not in near
    sentences = remarks([row(exposed=0.04, facts={"exposed_trace": 0.2})], None)
    assert "20 % exposed by the trace and 4.0 % by leaving the exchange out" in sentences[-1]


def test_first_table_has_scaling_and_both_exposed_shares():
    rows = [row(metrics={"scaling": Estimate(0.63)}, facts={"exposed_trace": 0.2}), row("single", exposed=0.0)]
    assert [column.heading for column in brief_columns(rows)[0]][-3:] == ["scaling %", "exposed %", "traced %"]
