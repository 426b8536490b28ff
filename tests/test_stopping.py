"""When a sweep has rounds enough: by the width of its intervals, and the same number for all variants."""

from __future__ import annotations

import json
from pathlib import Path

from tests import records
from tests.faults.stage import Stage


def slower(round_number: int, seconds: float) -> dict:
    samples = json.loads(records.cell([seconds, seconds], new_tokens=50).model_dump_json())["samples"]
    return {"variant": "b", "at": "cell 0", "round": round_number, "cell": {"samples": samples}}


def stage_of(tmp_path: Path, *seconds: float, rounds: int = 3) -> Stage:
    faults = [slower(number, value) for number, value in enumerate(seconds)]
    return Stage(tmp_path, new_tokens=[50], rounds=rounds, baseline="a", faults=faults)


def test_narrow_intervals_need_no_more_rounds(tmp_path: Path) -> None:
    stage = Stage(tmp_path, new_tokens=[50], rounds=3)
    stage.sweep(max_rounds=6)
    assert {cell[0] for cell in stage.cells()} == {0, 1, 2}


def test_wide_ones_get_more_until_they_are_narrow_or_no_more_are_allowed(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, 1.0, 1.2, 0.9, 1.1, 1.3, 0.8)
    stage.environment = stage.environment.model_copy(
        update={"device": stage.environment.device.model_copy(update={"kind": "cpu"})}
    )
    stage.sweep(max_rounds=5)
    assert [cell[:2] for cell in stage.cells()] == [(number, name) for number in range(5) for name in "ab"]
    assert "on to 4 rounds" in stage.printed
    assert json.loads((stage.results / "sweep.json").read_text())["rounds"] == 5


def test_rows_that_wait_for_the_host_hold_nobody_up_and_say_so(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, 1.0, 1.2, 0.9)
    stage.sweep(max_rounds=5)
    assert {cell[0] for cell in stage.cells()} == {0, 1, 2}
    assert "b: host-bound, ±" in stage.printed


def test_without_being_asked_no_round_is_added(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, 1.0, 1.2, 0.9)
    stage.sweep()
    assert {cell[0] for cell in stage.cells()} == {0, 1, 2}
