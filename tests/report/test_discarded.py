"""Attempts that other programs disturbed and processes stopped before their first cell are not counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_cli import typed
from tests.records import cell, record, save

SWEEP = "2026-03-01T09:00:00+00:00"
DISTURBED = cell([1.0], status="invalid", error_kind="disturbed", reason="other programs took 50 %")


def attempts(number: int) -> list[object]:
    """Return the records of a round: a disturbed attempt and two processes that each measured one of two cells."""
    ok, long = cell([1.0, 1.01]), cell([2.0, 2.01], new_tokens=100)
    long_disturbed = DISTURBED.model_copy(update={"new_tokens": 100})
    return [
        record("fp16", *cells, round_number=number, sweep=SWEEP, run_id=f"{number}-{position}")
        for position, cells in enumerate([(DISTURBED, long_disturbed), (ok, long_disturbed), (long,)])
    ]


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    stopped = record("fp16", round_number=2, sweep=SWEEP, run_id="2-1", status="interrupted")
    stopped = stopped.model_copy(update={"cells": ()})
    only_disturbed = record("fp16", DISTURBED, round_number=2, sweep=SWEEP, run_id="2-0")
    return save(tmp_path, *attempts(0), *attempts(1), only_disturbed, stopped)


def test_disturbed_and_interrupted_attempt_has_no_used_cells(tmp_path: Path) -> None:
    _, printed = typed("compare", save(tmp_path, record("fp16", DISTURBED, sweep=SWEEP, status="interrupted")))
    assert printed.lstrip().startswith("No variant has a number; the caveats give the reasons.\n")
    assert "the cells it finished are used" not in printed


@pytest.mark.parametrize("options", [["compare"], ["compare", "--all"], ["report"]])
def test_discarded_attempts_do_not_count_as_processes(interrupted: Path, options: list[str]) -> None:
    _, printed = typed(*options, interrupted)
    page = interrupted / "report.html"
    text = page.read_text() if page.exists() else printed
    assert "2 processes a variant" in " ".join(text.split())


def test_verify_counts_discarded_attempts_separately(interrupted: Path) -> None:
    assert "numbers of 4 records and 4 discarded tries checked: all follow" in typed("verify", interrupted)[1]


@pytest.mark.parametrize("options", [[], ["--all"]])
def test_a_ratio_of_fewer_rounds_than_the_rates_beside_it_names_its_rounds(tmp_path: Path, options: list[str]) -> None:
    records = [
        record(quant, cell([latency_s]), name=quant, round_number=number, sweep=SWEEP, run_id=f"{quant}-{number}")
        for quant, by_round in (("fp16", {0: 2.0, 1: 4.0, 2: 2.0}), ("int8", {0: 1.0, 2: 1.0}), ("int4", {1: 2.0}))
        for number, latency_s in by_round.items()
    ]
    printed = " ".join(typed("compare", *options, save(tmp_path, *records))[1].split())
    assert "int8 relative to fp16: ratios of rounds 1 and 3, which both have." in printed
    assert "int4 relative to fp16: ratios of round 2, which both have." in printed


def test_ratios_of_all_rounds_name_none(tmp_path: Path) -> None:
    records = [
        record(quant, cell([latency_s]), name=quant, round_number=number, sweep=SWEEP, run_id=f"{quant}-{number}")
        for quant, latency_s in (("fp16", 2.0), ("int8", 1.0))
        for number in range(3)
    ]
    assert "which both have" not in typed("compare", save(tmp_path, *records))[1]
