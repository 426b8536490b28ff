"""The load of the host is read from the kernel's counters; disturbed measurements are repeated."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from benchmarker.core.console import Terminal
from benchmarker.execution.jobs import make_job, saved_jobs
from benchmarker.execution.single_run import Run
from benchmarker.hardware.monitor import HostGauge, Surroundings, disturbance, why_disturbed
from benchmarker.report.compare import compare, to_markdown
from benchmarker.report.run_summary import print_result
from benchmarker.schema.job import Origin, Part
from benchmarker.schema.record import HostLoad, Missing
from benchmarker.schema.registry import workload_of
from tests.explained import INT8, INT8_LOAD
from tests.explained import run as explained_run
from tests.faults.stage import Stage, quiet_surroundings
from tests.records import cell, cpu_environment, environment

QUIET = HostLoad(seconds=2.0, cores=2, steal_share=0.0, others_share=0.01, involuntary_switches_per_s=1.0)
COMPILING = QUIET.model_copy(update={"others_share": 0.5, "involuntary_switches_per_s": 80.0})
REASON = "other programs took 50 % of our cores' time meanwhile, and preempted the process 80 times a second"


class ScriptedLoads:
    """Gauge with one load per child, or a pair for its cell and its profile; the last load repeats."""

    def __init__(self, *loads: HostLoad | tuple[HostLoad, HostLoad]) -> None:
        self._loads = [load if isinstance(load, tuple) else (load, load) for load in loads]

    def __call__(self, process: int) -> ScriptedLoads:
        self._cell, self._profile = self._loads.pop(0) if len(self._loads) > 1 else self._loads[0]
        return self

    def read(self) -> None: ...

    def between(self, start_s: float, end_s: float) -> HostLoad:
        load, self._cell = self._cell, self._profile
        return load


def busy(steal: float, others: float) -> HostLoad:
    return COMPILING.model_copy(update={"steal_share": steal, "others_share": others})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"others_share": 0.2}, None),
        ({"others_share": 0.5}, "other programs took 50 % of our cores' time meanwhile"),
        ({"involuntary_switches_per_s": 80.0}, None),
        ({"steal_share": 0.1}, "the hypervisor took 10 % of our cores' time meanwhile"),
        (COMPILING.model_dump() | {"steal_share": 0.03}, REASON),
        ({"others_share": 0.5, "involuntary_switches_per_s": 80.0}, REASON),
    ],
)
def test_load_that_takes_cores_from_the_process_is_a_disturbance(changes, reason) -> None:
    assert why_disturbed(QUIET.model_copy(update=changes)) == reason


def test_disturbed_process_is_repeated_and_kept_with_its_reason(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"], new_tokens=[50], watch_host=ScriptedLoads(COMPILING, QUIET))
    assert stage.sweep() == []
    bad, good = sorted(stage.records(), key=lambda record: record.cells[0].status)
    assert (bad.cells[0].status, bad.cells[0].error_kind, bad.cells[0].reason) == ("invalid", "disturbed", REASON)
    assert good.cells[0].status == "ok"
    assert good.cells[0].host_load == QUIET
    assert f"round 1 at prompt 26, 50 new tokens, batch 1: invalid: {REASON}" in to_markdown(compare([stage.results]))


@pytest.mark.parametrize(
    ("loads", "kept"),
    [
        # By the sum of steal and other programs, the second attempt is the least disturbed.
        ([busy(0.06, 0.03), busy(0.01, 0.06), busy(0.0, 0.09)], 1),
        ([busy(0.03, 0.0), busy(0.05, 0.45), busy(0.05, 0.45)], 0),
        # An undisturbed attempt is kept regardless of earlier attempts.
        ([busy(0.03, 0.0), busy(0.0, 0.06), QUIET], 2),
    ],
)
def test_least_disturbed_attempt_is_kept(tmp_path: Path, loads: list[HostLoad], kept: int) -> None:
    stage = Stage(tmp_path, variants=["a"], new_tokens=[50], watch_host=ScriptedLoads(*loads), is_profiled=True)
    assert stage.sweep() == []
    (good,) = [record for record in stage.records() if record.cells[0].status == "ok"]
    assert good.cells[0].host_load == loads[kept]
    assert good.cells[0].flags == (("disturbed",) if why_disturbed(loads[kept]) else ())
    assert [record.is_disturbed for record in stage.records()].count(True) == 2
    # The profile is from the kept attempt.
    assert [record.run_id for record in stage.records() if record.profile] == [good.run_id]
    assert "1 process a variant" in " ".join(stage.printed.split())


@pytest.mark.parametrize(("max_rounds", "maximum"), [(5, 5), (None, 6)])
def test_round_is_excluded_if_all_attempts_are_disturbed(tmp_path: Path, max_rounds: int | None, maximum: int) -> None:
    loads = [*[QUIET] * 2, *[busy(0.01, 0.4), busy(0.02, 0.3), busy(0.0, 0.5)], QUIET]
    stage = Stage(tmp_path, variants=["a"], new_tokens=[50], rounds=None, watch_host=ScriptedLoads(*loads))
    assert stage.sweep(rounds=3, max_rounds=max_rounds) == []
    assert [(cell[0], cell[3]) for cell in stage.cells()] == [
        (0, "ok"),
        (1, "ok"),
        *[(2, "invalid")] * 3,
        (3, "ok"),
    ]
    printed = " ".join(stage.printed.split())
    assert f"{REASON}; not measured again, because all tries were disturbed; the round is left out" in printed
    assert f"rounds are left out because of other programs: adding round 4 of up to {maximum}" in stage.printed
    assert "a: other programs disturbed 1 of 4 rounds, which is left out; --resume" in printed
    assert "3 processes a variant" in printed
    assert "left out: a round 3 at prompt 26, 50 new tokens, batch 1; the first: invalid: other" in to_markdown(
        compare([stage.results])
    )


def test_variant_with_valid_rounds_of_each_cell_does_not_fail(tmp_path: Path) -> None:
    bad = busy(0.2, 0.0)
    stage = Stage(tmp_path, variants=["a"], rounds=3, watch_host=ScriptedLoads((bad, QUIET), bad, bad, (QUIET, bad)))
    assert stage.sweep() == []
    printed = " ".join(stage.printed.split())
    assert "a, 26 x 50: other programs disturbed 1 of 3 rounds, which is left out; --resume" in printed
    assert "a, 26 x 100: other programs disturbed 2 of 3 rounds, which are left out; --resume" in printed


def test_allow_shared_keeps_and_flags_disturbed_cells(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"], new_tokens=[50], rounds=3, watch_host=ScriptedLoads(COMPILING))
    assert stage.sweep(allow_shared=True) == []
    kept = [cell for record in stage.records() for cell in record.cells if cell.status == "ok"]
    assert [cell.flags[-1] for cell in kept] == ["disturbed"] * 3
    assert "the round is left out" not in stage.printed


@pytest.mark.parametrize("allow_shared", [False, True])
def test_cell_with_invalid_samples_is_never_kept(tmp_path, allow_shared) -> None:
    reason = "54 % of the tokens arrived together with the token before: processor cores were lacking"
    merged = {"status": "invalid", "error_kind": "merged_tokens", "reason": reason}
    faults = [{"variant": "a", "at": "cell 0", "cell": merged, "times": 9}]
    stage = Stage(tmp_path, variants=["a"], new_tokens=[50], rounds=1, faults=faults, watch_host=ScriptedLoads(QUIET))
    assert stage.sweep(allow_shared=allow_shared) == ["a"]
    assert {cell[3] for cell in stage.cells()} == {"invalid"}
    assert "the round is left out" in " ".join(stage.printed.split())
    assert "a: merged tokens disturbed 2 of 2 rounds, which are left out" in " ".join(stage.printed.split())
    assert "other programs" not in stage.printed
    assert "--allow-shared keeps" not in stage.printed


def test_busy_host_stops_repetitions_and_gives_no_numbers(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"], new_tokens=[50], rounds=4, watch_host=ScriptedLoads(COMPILING))
    assert stage.sweep() == ["a"]
    # Six disturbed cells (two rounds with three attempts each) show that the host is permanently busy.
    assert [(cell[0], cell[3]) for cell in stage.cells()] == [
        (number, "invalid") for number in (0, 0, 0, 1, 1, 1, 2, 3)
    ]
    printed = " ".join(stage.printed.split())
    assert (
        f"{REASON}; not measured again, because most of the last 6 cells were disturbed; the round is left out"
        in printed
    )
    assert "a: other programs disturbed 4 of 4 rounds, which are left out" in printed
    assert "resume with: benchmarker sweep" in printed
    assert "alone: " not in printed
    assert "0 valid cells" in printed
    assert "variant tok/s a invalid" in printed


def test_variants_with_the_same_excluded_rounds_share_a_line(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a", "b"], new_tokens=[50], watch_host=ScriptedLoads(COMPILING))
    assert stage.sweep() == ["a, b"]
    assert "failed: a, b: invalid: other programs disturbed 1 of 1 round, which is left out" in stage.printed


def test_profile_is_taken_from_an_undisturbed_process(tmp_path: Path) -> None:
    watch_host = ScriptedLoads((QUIET, COMPILING), (COMPILING, QUIET), QUIET)
    stage = Stage(tmp_path, variants=["a"], new_tokens=[50], rounds=3, watch_host=watch_host, is_profiled=True)
    assert stage.sweep() == []
    records = sorted(stage.records(), key=lambda record: (record.round, record.cells[0].status))
    profiled = [(record.round, record.cells[0].status, record.profile is not None) for record in records]
    assert profiled == [(0, "ok", False), (1, "invalid", False), (1, "ok", True), (2, "ok", False)]
    assert records[0].no_profile == Missing(error_kind="disturbed", reason=f"discarded: {REASON}")


def test_profile_with_load_on_other_cores_is_kept(tmp_path: Path) -> None:
    on_other_cores = QUIET.model_copy(update={"others_share": 0.2})
    watch_host = ScriptedLoads((QUIET, on_other_cores))
    stage = Stage(tmp_path, variants=["a"], new_tokens=[50], rounds=3, watch_host=watch_host, is_profiled=True)
    assert stage.sweep() == []
    assert [record.round for record in stage.records() if record.profile] == [0]
    assert {record.no_profile for record in stage.records()} == {None}


def test_discarded_profile_has_the_error_kind_of_its_last_cell(tmp_path: Path) -> None:
    hot = {"status": "invalid", "error_kind": "throttled", "reason": "the board was throttled meanwhile"}
    faults = [{"variant": "a", "at": "cell 0", "cell": hot, "times": 1}]
    stage = Stage(tmp_path, variants=["a"], new_tokens=[50], faults=faults, is_profiled=True)
    assert stage.sweep() == []
    (bad,) = [record for record in stage.records() if record.no_profile]
    assert bad.no_profile == Missing(error_kind="throttled", reason="discarded: the board was throttled meanwhile")


def test_wrong_result_after_a_disturbed_attempt_is_a_failure(tmp_path: Path) -> None:
    wrong = {"status": "invalid", "error_kind": "wrong_result", "reason": "another token"}
    faults = [
        {"variant": "a", "at": "cell 0", "cell": {}, "times": 1},
        {"variant": "a", "at": "cell 0", "cell": wrong},
    ]
    watch_host = ScriptedLoads(busy(0.06, 0.0), QUIET)
    stage = Stage(tmp_path, variants=["a"], new_tokens=[50], faults=faults, watch_host=watch_host)
    assert stage.sweep() == ["a, round 1"]
    assert sorted(str(record.cells[0].error_kind) for record in stage.records()) == ["disturbed", "wrong_result"]


def test_busy_host_is_not_the_reason_after_the_last_attempt(tmp_path: Path) -> None:
    hot = {"status": "invalid", "error_kind": "throttled", "reason": "the board was throttled meanwhile"}
    faults = [{"variant": "a", "at": "cell 0", "cell": hot, "times": 1}]
    watch_host = ScriptedLoads(QUIET, COMPILING)
    stage = Stage(tmp_path, variants=["a"], new_tokens=[50], faults=faults, watch_host=watch_host)
    stage.sweep(max_rounds=1)
    assert [cell[3] for cell in stage.cells()] == ["invalid"] * 3
    printed = " ".join(stage.printed.split())
    assert f"{REASON}; not measured again, because all tries were disturbed; the round is left out" in printed


@pytest.fixture
def two_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a host of two cores and 100 ticks per second readings at 100 and 101 s."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    now = iter([100.0, 101.0])
    monkeypatch.setattr(time, "time", lambda: next(now))


@pytest.mark.usefixtures("two_readings")
def test_kernel_counters_separate_other_programs_from_the_run(tmp_path: Path) -> None:
    gauge = HostGauge(7, proc=tmp_path)
    # In the second between the readings: 150 ticks of 200 were busy, 40 of them ours and our child's, 10 were stolen.
    write_counters(tmp_path, busy=(1000, 1000), steal=0, own=500, child=20, switches=3)
    gauge.read()
    write_counters(tmp_path, busy=(1100, 1050), steal=10, own=530, child=30, switches=53)
    gauge.read()
    load = gauge.between(100.2, 100.8)
    assert load is not None
    assert (load.seconds, load.cores) == (1.0, 2)
    assert load.others_share == pytest.approx(110 / 200)
    assert load.steal_share == pytest.approx(10 / 200)
    assert load.involuntary_switches_per_s == 50.0
    # The process ended, so its ticks cannot be read. A cell after the last reading has the same load.
    shutil.rmtree(tmp_path / "7")
    gauge.read()
    assert gauge.between(101.1, 101.3) == load


@pytest.mark.usefixtures("two_readings")
def test_ended_server_is_not_counted_as_other_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", iter([100.0, 100.5, 101.0]).__next__)
    gauge = HostGauge(7, proc=tmp_path)
    for busy, child in ((1000, 4000), (1050, 4040), (1100, 0)):
        write_counters(tmp_path, busy=(busy, 1000), steal=0, own=500, child=child, switches=3)
        gauge.read()
    load = gauge.between(100.2, 100.8)
    assert load is not None
    assert (load.seconds, load.others_share) == (0.5, pytest.approx(10 / 100))


def write_counters(proc: Path, *, busy: tuple[int, int], steal: int, own: int, child: int, switches: int) -> None:
    cores = [f"cpu{number} {ticks} 0 0 0 0 0 0 {steal * (number == 0)} 0 0" for number, ticks in enumerate(busy)]
    (proc / "stat").write_text("\n".join(["cpu 0 0 0 0 0 0 0 0 0 0", *cores, "cpu2 9999 0 0 0 0 0 0 999 0 0"]))
    for number, ticks in ((7, own), (8, child)):
        task = proc / str(number) / "task" / str(number)
        task.mkdir(parents=True, exist_ok=True)
        (proc / str(number) / "stat").write_text(f"{number} (a (b) S{' 0' * 10} {ticks} 0 0 0 0")
        (task / "children").write_text("8 " if number == 7 else "")
        (task / "status").write_text(f"voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t{switches}\n")


def test_load_is_none_without_kernel_counters(tmp_path: Path) -> None:
    gauge = HostGauge(7, proc=tmp_path)
    gauge.read()
    assert gauge.between(0.0, 1.0) is None


@pytest.mark.usefixtures("two_readings")
def test_process_counts_its_ended_children_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 7)
    gauge = HostGauge(7, proc=tmp_path)
    write_counters(tmp_path, busy=(1000, 1000), steal=0, own=500, child=20, switches=3)
    gauge.read()
    write_counters(tmp_path, busy=(1100, 1050), steal=0, own=530, child=30, switches=3)
    # A child that ended used 40 ticks.
    (tmp_path / "7" / "stat").write_text(f"7 (a (b) S{' 0' * 10} 530 0 40 0 0")
    gauge.read()
    load = gauge.between(100.0, 101.0)
    assert load is not None
    assert load.others_share == pytest.approx((150 - 30 - 10 - 40) / 200)


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    monkeypatch.setattr("benchmarker.hardware.monitor.HostGauge", ScriptedLoads(COMPILING))
    return Surroundings()


def test_single_run_warns_first_and_flags_disturbed_cells(surroundings: Surroundings) -> None:
    assert surroundings.before(cpu_environment()) == [
        "other programs keep 1.0 processors busy: the times may be too long; end them"
    ]
    marked, reason = surroundings.beside(cell([1.0], timed_at=(1.0, 2.0)), own_processes=1)
    assert reason == REASON
    assert (marked.status, marked.flags, marked.host_load) == ("ok", ("disturbed",), COMPILING)


def test_one_busy_core_of_many_is_not_a_disturbance(monkeypatch: pytest.MonkeyPatch) -> None:
    many = QUIET.model_copy(update={"cores": 128})
    monkeypatch.setattr("benchmarker.hardware.monitor.HostGauge", ScriptedLoads(many))
    assert many.cores * disturbance(many) == pytest.approx(1.28)
    assert Surroundings().before(cpu_environment()) == []


@pytest.mark.parametrize("variables", [{"OMP_NUM_THREADS": "2"}, {"MKL_NUM_THREADS": "2"}])
def test_number_of_threads_set_by_the_user_is_kept(surroundings: Surroundings, variables: dict[str, str]) -> None:
    set_by_user = cpu_environment(cores=2, threads=2, variables=variables)
    for unchanged in (set_by_user, environment()):
        assert surroundings.with_free_threads(unchanged) == (unchanged, None)


@pytest.mark.parametrize(
    ("cores", "quota", "others_share", "free"),
    [(2, 2, 0.5, 1), (64, 4, 10 / 64, 4), (64, 4, 62 / 64, 2), (64, 64, 10 / 64, 54)],
)
def test_number_of_threads_is_the_number_of_free_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, quota: int, others_share: float, free: int
) -> None:
    load = QUIET.model_copy(update={"cores": cores, "others_share": others_share})
    monkeypatch.setattr("benchmarker.hardware.monitor.HostGauge", ScriptedLoads(load))
    recorded = cpu_environment(cores=quota, threads=quota, variables={"OMP_NUM_THREADS": ""})
    line = f"threads: {free} ({free} of {quota} cores are free; OMP_NUM_THREADS sets another number)"
    assert Surroundings().with_free_threads(recorded) == (recorded.model_copy(update={"threads": free}), line)


def test_sweep_keeps_the_number_of_threads_from_its_start(surroundings: Surroundings, tmp_path: Path) -> None:
    two = cpu_environment(cores=2, threads=2)
    stage = Stage(tmp_path, rounds=2, environment=two, surroundings=lambda: surroundings)
    assert stage.sweep() == []
    line = "threads: 1 (1 of 2 cores are free; OMP_NUM_THREADS sets another number)"
    assert stage.printed.count("threads: ") == stage.printed.count(line) == 1
    assert [job.origin.environment.threads for job in saved_jobs(stage.results) if job.origin] == [1, 1]
    # The machine is quiet when the sweep is resumed.
    stage.surroundings = quiet_surroundings
    assert stage.sweep(resume=True) == []
    assert "threads: 1, as when this sweep began" in stage.printed
    assert [job.origin.environment.threads for job in saved_jobs(stage.results) if job.origin] == [1, 1]


def test_process_uses_the_number_of_threads_of_its_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chosen: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", chosen.append)
    recorded = cpu_environment(threads=2)
    monkeypatch.setattr("benchmarker.execution.single_run.environment", lambda device: recorded)
    origin = Origin(
        config="", config_sha256="", benchmarker="", keys=(), inputs={},
        environment=recorded.model_copy(update={"threads": 1}),
    )  # fmt: skip
    timed = Part(record=tmp_path / "record.json", sweep="now", only="timing")
    # A worker of `--places` has a share of the cores.
    for part, threads in ((timed, 1), (None, 1), (timed.model_copy(update={"place": "local:0"}), 2)):
        job = make_job({"variant.quant": "int8"}, device="cpu")
        run = Run(job.model_copy(update={"origin": origin, "part": part}), Terminal())
        assert run.record.environment.threads == threads
    assert chosen == [1, 1]


LONGER = {"new_tokens": 300, "flags": ("disturbed",)}


def test_speed_of_a_disturbed_run_is_not_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiet = explained_run("int8", *INT8, tpot_ms=20.0, load=INT8_LOAD)
    disturbed = quiet.model_copy(update={"cells": (quiet.cells[0].model_copy(update={"flags": ("disturbed",)}),)})
    partly = quiet.model_copy(update={"cells": (*quiet.cells, quiet.cells[0].model_copy(update=LONGER))})
    first = partly.model_copy(update={"cells": (*disturbed.cells, *quiet.cells)})
    lines = ("the run: the speed is not explained.", "1 of 2 cells: the speed is not explained.", "1 of 2 cells.")
    for run, line in ((quiet, ""), (disturbed, lines[0]), (partly, lines[1]), (first, lines[2])):
        print_result(run, tmp_path, Terminal(), workload_of("generation"))
        printed = capsys.readouterr().out
        assert [text in printed for text in lines] == [text == line for text in lines]
        assert ("is bound by" in printed) == (run in (quiet, first))
