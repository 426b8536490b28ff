"""Sweeps over several places of this host: whole rounds side by side, and what is lost when something dies."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarker.core.errors import DeviceError, SpecError
from benchmarker.schema.collect import UNDER_WAY
from benchmarker.sweep.places.cores import share_of
from benchmarker.sweep.places.local import visible_card
from benchmarker.sweep.places.place import local_numbers
from tests import records
from tests.faults.stage import Stage

TWO = "local:0,1"


def fault(deed: str, at: str = "cell 1", **more: Any) -> dict[str, Any]:
    return {"variant": "a", "at": at, "do": deed, **more}


def places_of_rounds(stage: Stage) -> dict[int, set[str | None]]:
    places: dict[int, set[str | None]] = {}
    for record in stage.records():
        places.setdefault(record.round, set()).add(record.place)
    return places


def test_every_round_is_whole_at_one_place_and_both_places_work(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=4)
    assert stage.sweep(places=TWO) == []
    assert [cell[3] for cell in stage.cells()] == ["ok"] * 16
    places = places_of_rounds(stage)
    assert sorted(places) == [0, 1, 2, 3]
    assert sorted(Counter(place for (place,) in places.values()).values()) == [2, 2]
    # The second round of a pair runs backwards where the first one ran, so that a drift within them cancels.
    assert places[0] == places[1]
    assert "4 rounds took" in stage.printed
    assert "shared_host: other places of the same host measured meanwhile" in stage.printed
    assert not list(stage.results.glob(f"{UNDER_WAY}*"))


def profiles(stage: Stage) -> list[tuple[str, int]]:
    """Variant and round of each record that was to have a profile."""
    return sorted((record.variant.name, record.round) for record in stage.records() if record.procedure["profile"])


@pytest.mark.parametrize(
    ("places", "expected"), [("local:0", [("a", 0), ("b", 0), ("c", 0)]), (TWO, [("a", 0), ("b", 2), ("c", 0)])]
)
def test_places_that_begin_together_share_the_variants_profiles(
    tmp_path: Path, places: str, expected: list[tuple[str, int]]
) -> None:
    # A profile and the check of the step take as long as timing: a round with all of them would be the last to end.
    stage = Stage(tmp_path, variants=("a", "b", "c"), rounds=4)
    stage.sweep(places=places)
    assert profiles(stage) == expected


def test_a_killed_workers_profiles_are_made_when_its_round_is_run_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=("a", "b", "c"), rounds=4, faults=[fault("kill the sweep", round=0, times=1)])
    stage.sweep(places=TWO)
    assert sorted(name for name, _ in profiles(stage)) == ["a", "b", "c"]


def test_the_records_are_those_of_a_sweep_without_places_but_for_the_place(tmp_path: Path) -> None:
    alone, beside = Stage(tmp_path / "alone"), Stage(tmp_path / "beside")
    alone.sweep()
    beside.sweep(places="local:0")
    own = {"run_id", "started_at", "opened_at", "sweep", "place", "reproduce"}
    for first, second in zip(alone.records(), beside.records(), strict=True):
        changed = {name for name in type(first).model_fields if getattr(first, name) != getattr(second, name)}
        assert changed <= own | {"cells"}
        assert [cell.key for cell in first.cells] == [cell.key for cell in second.cells]
        assert second.place == "local:0"
        assert all(cell.flags == () for cell in second.cells)


@pytest.mark.parametrize(
    ("places", "rounds", "expected"),
    [
        (TWO, 4, "at local:0,1: 2 rounds at a time"),
        (TWO, 1, "at local:0,1: 1 round at a time, so that 1 place is not used: a place takes a whole round"),
        ("ray", 4, "at ray: one round at a time for each GPU that there is; the guess is of one GPU"),
    ],
)
def test_the_plan_says_the_places(tmp_path: Path, places: str, rounds: int, expected: str) -> None:
    stage = Stage(tmp_path, rounds=rounds)
    stage.sweep(places=places, dry_run=True)
    assert expected in stage.printed


def test_rounds_at_several_places_take_as_long_as_the_place_that_has_most(tmp_path: Path) -> None:
    def minutes(**settings: Any) -> int:
        stage = Stage(tmp_path / str(settings), rounds=30)
        stage.sweep(dry_run=True, **settings)
        return int(re.findall(r"by a first guess about (\d+) min", stage.printed)[0])

    alone = minutes()
    assert minutes(places=TWO) == pytest.approx(alone / 2, abs=1)
    assert minutes(places="local:0,1,2,3") == pytest.approx(alone * 8 / 30, abs=1)


def test_a_killed_worker_costs_its_round_which_is_run_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=2, faults=[fault("kill the sweep", round=1, times=1)])
    assert stage.sweep(places=TWO) == []
    assert "its process died of SIGKILL; round 2 is run again" in stage.printed
    assert [cell[3] for cell in stage.cells()] == ["ok"] * 8
    assert all(len(places) == 1 for places in places_of_rounds(stage).values())


@pytest.mark.slow
def test_a_place_that_dies_again_and_again_is_left_out_and_the_other_does_the_work(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=2)
    broken = 'test "$CUDA_VISIBLE_DEVICES" = 0 || kill -9 $PPID; exec "$0" "$@"'
    stage.wrap = ("sh", "-c", broken)
    assert stage.sweep(places=TWO) == []
    assert places_of_rounds(stage) == {0: {"local:0"}, 1: {"local:0"}}


@pytest.mark.slow
def test_no_place_left_is_an_error_and_what_is_there_is_compared(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=2, faults=[fault("kill the sweep", round=1)])
    with pytest.raises(DeviceError, match="no place is left for round 2"):
        stage.sweep(places="local:0")
    assert "a leads: 99.50 tok/s" in stage.printed
    assert {cell[0] for cell in stage.cells()} == {0}


@pytest.mark.slow
def test_a_killed_driver_loses_no_finished_round_and_leaves_nothing_running(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=3, variants=["a"], faults=[fault("hang", round=1, times=1)])

    def kill_when_it_hangs() -> None:
        def look(*_: object) -> None:
            if (tmp_path / "script.0").exists():
                os.kill(os.getpid(), signal.SIGKILL)

        signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)

    assert stage.sweep_apart(kill_when_it_hangs, places="local:0") == -signal.SIGKILL
    first = {record.run_id for record in stage.records()}
    assert len(first) == 1
    assert not running_in(tmp_path)
    assert stage.sweep(resume=True, places="local:0") == []
    assert "1 of 3 rounds are there already" in stage.printed
    assert first < {record.run_id for record in stage.records()}
    assert [cell[3] for cell in stage.cells()] == ["ok"] * 6


def running_in(folder: Path) -> list[str]:
    """Command lines that name this folder, after a moment in which the kernel ends orphans."""
    psutil.wait_procs([process for process in psutil.process_iter() if names(process, folder)], timeout=5)
    return [" ".join(process.cmdline()) for process in psutil.process_iter() if names(process, folder)]


def names(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.pid != os.getpid() and any(str(folder) in word for word in process.cmdline())
    except psutil.Error:
        return False


def test_ctrl_c_leaves_nothing_running_and_keeps_the_finished_rounds(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=2, variants=["a"], faults=[fault("hang", round=1)])

    def interrupt_when_it_hangs() -> None:
        def look(*_: object) -> None:
            if (tmp_path / "script.0").exists():
                signal.setitimer(signal.ITIMER_REAL, 0)
                raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)

    assert stage.sweep_apart(interrupt_when_it_hangs, places="local:0") == 1
    assert "KeyboardInterrupt" in (tmp_path / "traceback").read_text()
    assert not running_in(tmp_path)
    assert {cell[0] for cell in stage.cells()} == {0}
    assert "go on with: benchmarker sweep" in stage.printed


@pytest.mark.slow
def test_a_round_that_is_not_whole_is_measured_again_as_a_whole(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=2)
    stage.sweep()
    next(stage.results.glob("b-round2*.json")).unlink()
    assert stage.sweep(resume=True, places=TWO) == []
    assert "1 of 2 rounds are there already" in stage.printed
    assert "round 2 is not whole" in stage.printed
    assert [cell[3] for cell in stage.cells()] == ["ok"] * 8
    assert len(list(stage.results.glob("*.set-aside"))) == 1


@pytest.mark.slow
def test_what_cannot_be_measured_is_given_up_once_and_its_round_counts_as_whole(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=2, faults=[fault("unsupported", "load")])
    assert stage.sweep(places="local:0") == ["a, round 1"]
    stage.sweep(resume=True, places="local:0")
    assert "2 of 2 rounds are there already" in stage.printed


def test_a_place_unlike_the_first_is_left_out_with_what_differs(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=2)
    device = stage.environment.device
    older = stage.environment.model_copy(update={"device": device.model_copy(update={"driver": "1.0"})})
    (tmp_path / "older").write_text(older.model_dump_json())
    stage.probe = (
        "sh",
        "-c",
        f'test "$CUDA_VISIBLE_DEVICES" = 0 && cat {tmp_path}/environment.json || cat {tmp_path}/older',
    )
    assert stage.sweep(places=TWO) == []
    assert "local:1: left out: device.driver: 580.159.04, then 1.0" in stage.printed
    assert places_of_rounds(stage) == {0: {"local:0"}, 1: {"local:0"}}


def test_a_checkpoint_that_there_is_not_is_said_before_any_round(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.prepare = ("sh", "-c", "echo 'error: Qwen/Qwen3-4B: no such folder'; exit 2")
    with pytest.raises(DeviceError, match=r"local:0: Qwen/Qwen3-4B: no such folder$"):
        stage.sweep(places=TWO)
    assert not stage.results.exists()


@pytest.mark.parametrize("words", ["local", "local:", "local:a", "slurm", "local:0,,1"])
def test_places_that_there_are_not_are_refused(words: str) -> None:
    with pytest.raises(SpecError, match=r"no such places; give 'local:0,1'"):
        local_numbers(words)


def test_a_card_stands_once_and_is_no_option_of_the_runs(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="a number stands twice"):
        local_numbers("local:1,1")
    with pytest.raises(SpecError, match=r"--device cuda:1: --places says which cards are used"):
        Stage(tmp_path).sweep("--device", "cuda:1", places=TWO)


def test_a_place_sees_one_card_of_those_that_the_user_sees() -> None:
    assert visible_card(1, None) == "1"
    assert visible_card(1, "4,5") == "5"
    assert visible_card(0, "GPU-aa,GPU-bb") == "GPU-aa"


def test_cores_are_split_evenly_and_a_socket_stays_together() -> None:
    def socket_first(core: int) -> tuple[int, ...]:
        return core % 2, core

    assert share_of(range(8), 0, 2, order=socket_first) == (0, 2, 4, 6)
    assert share_of(range(8), 1, 2, order=socket_first) == (1, 3, 5, 7)
    assert share_of(range(7), 2, 3, order=socket_first) == (1, 3)
    assert share_of(range(1), 0, 2, order=socket_first) == ()


def test_a_host_without_a_gpu_measures_on_its_processor_only_if_that_is_asked_for(tmp_path: Path) -> None:
    stage = Stage(tmp_path, environment=records.environment(device={"kind": "cpu", "index": None}))
    with pytest.raises(
        DeviceError, match=r"local:0: this host has no such GPU .*--device cpu measures on its processor"
    ):
        stage.sweep(places=TWO)
    assert not stage.results.exists()
    assert stage.sweep("--device", "cpu", places="local:0") == []
