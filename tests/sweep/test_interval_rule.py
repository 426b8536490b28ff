"""A sweep adds rounds while an interval is wide; all variants have the same number of rounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import records
from tests.faults.stage import Stage


def slow_cell(round_number: int, seconds: float) -> dict:
    samples = json.loads(records.cell([seconds, seconds], new_tokens=50).model_dump_json())["samples"]
    return {"variant": "b", "at": "cell 0", "round": round_number, "cell": {"samples": samples}}


def stage_of(tmp_path: Path, *seconds: float, rounds: int | None = 3, kind: str = "cuda") -> Stage:
    faults = [slow_cell(number, value) for number, value in enumerate(seconds)]
    stage = Stage(tmp_path, new_tokens=[50], rounds=rounds, baseline="a", faults=faults)
    device = stage.environment.device.model_copy(update={"kind": kind})
    stage.environment = stage.environment.model_copy(update={"device": device})
    return stage


def test_narrow_intervals_add_no_rounds(tmp_path: Path) -> None:
    stage = Stage(tmp_path, new_tokens=[50], rounds=3)
    stage.sweep(max_rounds=6)
    assert {cell[0] for cell in stage.cells()} == {0, 1, 2}


def test_wide_intervals_add_rounds_up_to_the_maximum(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, 1.0, 1.2, 0.9, 1.1, 1.3, 0.8, kind="cpu")
    stage.sweep(max_rounds=5)
    assert [cell[:2] for cell in stage.cells()] == [(number, name) for number in range(5) for name in "ab"]
    assert "adding rounds, up to 4" in stage.printed
    assert json.loads((stage.results / "sweep.json").read_text())["rounds"] == 5


def test_host_bound_variants_add_no_rounds_and_are_named(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, 1.0, 1.2, 0.9)
    stage.sweep(max_rounds=5)
    assert {cell[0] for cell in stage.cells()} == {0, 1, 2}
    assert "b: host-bound, ±" in stage.printed


@pytest.mark.parametrize("settings", [{}, {"rounds": 3}, {"max_rounds": 5, "max_time_s": 0.0}])
def test_no_round_is_added_to_fixed_rounds_or_after_the_time_limit(tmp_path: Path, settings: dict) -> None:
    stage = stage_of(tmp_path, 1.0, 1.2, 0.9, kind="cpu")
    stage.sweep(**settings)
    assert {cell[0] for cell in stage.cells()} == {0, 1, 2}
    assert ("--max-time 0 is up" in stage.printed) == ("max_time_s" in settings)


def test_default_number_of_rounds_is_five_to_ten(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, 1.0, 1.1, rounds=None, kind="cpu")
    stage.sweep(dry_run=True)
    assert "plan: 5 rounds (up to 10 while an interval is wide) of a, b" in stage.printed
    stage.sweep(max_rounds=6)
    assert {cell[0] for cell in stage.cells()} == set(range(6))


def test_resumed_sweep_keeps_its_maximum_number_of_rounds(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, 1.0, 1.2, 0.9, kind="cpu")
    stage.sweep(max_rounds=4)
    stage.sweep(resume=True)
    assert {cell[0] for cell in stage.cells()} == set(range(4))
