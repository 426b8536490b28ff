"""What a printed log of ring attention says: its table has no opening rule, and rows in seconds and in milliseconds."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarker.cli.app import app
from benchmarker.profiling.printed_table import read_tables
from benchmarker.workloads.context_parallel.log_values import read_values
from benchmarker.workloads.context_parallel.log_verdict import ring_sentences

LOG = Path(__file__).parents[2] / "data" / "ring-attention.txt"
"""Made up: 4 ranks, 3 calls of a second, of which one in ten is left to communication."""
BOTH = "is of forward and backward (3.5 times the forward's, the causal mask halved)"


@pytest.fixture
def text():
    return LOG.read_text()


def sentences(text):
    return "\n".join(ring_sentences(read_tables(text), text))


def test_rows_in_seconds_are_counted_though_the_table_has_no_opening_rule(text):
    (table,) = read_tables(text)
    assert sum(row.self_device_s for row in table.kernels) == pytest.approx(3.88)


def test_exposed_communication_is_what_the_other_kernels_leave_of_the_time(text):
    assert "exposed communication: about 10 % of the time" in sentences(text)
    assert "3 calls of 1.0000 s without the profiler, 3.0000 s together" in sentences(text)
    assert "at least 900.00 ms of the 3.9000 s of kernels ran at once" in sentences(text)


def test_kernels_that_take_longer_than_the_calls_tell_nothing_of_what_is_exposed(text):
    assert "is not to be told" in sentences(text.replace("1000.00 ms", "800.00 ms"))


def test_wrong_shares_are_named_with_the_mistake_that_gives_them(text):
    assert "attention 68.3 % and communication 30.8 %; the log prints attention 0.30 %" in sentences(text)
    assert "left out the rows that are printed in seconds (1.5000 s, 1.2000 s)" in sentences(text)
    right = text.replace("0.30 %", "68.26 %").replace("RingComm : 0.00 %", "RingComm : 30.77 %")
    assert "the log prints" not in sentences(right)


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (
            "61.57",
            f"61.57 TFLOP/s {BOTH}, per GPU",
        ),
        (
            "246.29",
            f"246.29 TFLOP/s {BOTH}, of all 4",
        ),
        ("58.64", "58.64 TFLOP/s is of the forward pass, the causal mask halved, per GPU"),
    ],
)
def test_the_printed_rate_is_given_its_meaning(text, printed, expected):
    assert expected in sentences(text.replace("61.57", printed))


def test_a_rate_that_no_reading_gives_is_not_explained(text):
    assert "TFLOP/s is" not in sentences(text.replace("61.57", "99.00"))


def test_the_kernels_alone_are_held_against_the_ring(text):
    assert "73 to 80 TFLOP/s forward, of which the ring keeps 78 %" in sentences(text)
    assert "73 to 74 TFLOP/s backward, of which the ring keeps 85 %" in sentences(text)


def test_kernels_that_were_launched_before_the_recording_are_seen_by_their_counts(text):
    assert "kernels of 3 calls and 1 more backward kernel than that, but the launches of 2" in sentences(text)


def test_other_logs_give_no_sentence(text):
    assert read_values("nothing") is None
    assert ring_sentences(read_tables(text), "World Size: 4") == ()
    other = (LOG.parent / "qlora-table.txt").read_text()
    assert ring_sentences(read_tables(other), text) == ()


def test_explain_prints_them_under_their_workload(text):
    printed = CliRunner().invoke(app, ["explain", str(LOG)]).output
    assert "**Context parallel**" in printed
    assert "912 MB is of one rank" in printed
