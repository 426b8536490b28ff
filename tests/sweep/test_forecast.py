"""The duration of a sweep is forecast: from the first round of recorded sweeps, with quality, and on a CPU."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarker.cli.sweep_command import split_arguments
from benchmarker.core.formatting import approximate_duration
from benchmarker.hardware.monitor import load_per_core
from benchmarker.schema.record import RunRecord
from benchmarker.schema.record_io import OrderLine, read_record
from benchmarker.sweep.request import Settings, make_request, read_config
from benchmarker.sweep.sweep_plan import Schedule, Task, missing_tasks
from benchmarker.workloads.generation.generation_quality import GenerationJudging
from benchmarker.workloads.generation.spec import guess_parameters
from tests import records
from tests.faults.stage import Stage
from tests.jobs import job_of

REFERENCE = Path(__file__).parents[2] / "results/reference"
FACTOR = 1.3
PAUSE_S = 600.0
"""Longest time between two starts that is not a pause of the sweep."""


def processes(folder: Path) -> list[tuple[float, float, RunRecord]]:
    """Return start, end and record of each process of a sweep. File names contain the start of the process."""
    started = {}
    for path in folder.glob("*-round*.json"):
        (text,) = re.findall(r"-(\d{8}-\d{6})-\w+\.json$", path.name)
        record = read_record(path)
        if any(cell.timed_at for cell in record.cells):
            started[datetime.strptime(text, "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()] = record
    starts = sorted(started)
    spans = []
    for start, following in zip(starts, [*starts[1:], math.inf], strict=True):
        last = max(cell.timed_at[1] for cell in started[start].cells if cell.timed_at) + 1
        spans.append((start, following if following - start < PAUSE_S else last, started[start]))
    return spans


# File names have a resolution of one second, so sweeps with processes under eight seconds are excluded. Also excluded
# are sweeps with several workers and h100-llama-cpp, whose first round read from a cold disk (1.5 times too long).
@pytest.mark.parametrize(
    "name",
    [
        "quickstart",
        "h100-aa",
        "h100-attention",
        "h100-batches",
        "h100-finetune",
        "h100-first-token",
        "h100-mixers",
        "h100-native",
        "h100-prompts/short",
        "h100-shapes/few",
        "h100-shapes/many",
        "h100-x2-context-parallel",
        "h200-finetune",
        "h200-mixers",
    ],
)
def test_first_round_forecasts_the_rest_of_a_recorded_sweep(name: str) -> None:
    spans = processes(REFERENCE / name)
    jobs: dict[str, Any] = {record.variant.name: job_of() for _, _, record in spans}
    schedule = Schedule(jobs, shared_imports=False)
    rest: list[Task] = []
    actual_s: dict[int, float] = defaultdict(float)
    for start, end, record in spans:
        task = Task(record.round, record.variant.name, (0,), 1.0)
        if record.round == 0:
            schedule.learn(task, [(start, end, record)])
        elif task not in rest:
            rest.append(task)
        actual_s[record.round] += end - start
    measured_s = sum(seconds for number, seconds in actual_s.items() if number > 0)
    assert measured_s / FACTOR < schedule.seconds(rest) < measured_s * FACTOR


def test_time_left_includes_quality_in_each_progress_line(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a", "b"], rounds=1)
    stage.sweep("--quality", "quick", "--runs", "2")
    lines = [line for line in stage.printed.splitlines() if line.startswith("[")]
    assert [re.sub(r"\(.*", "", line) for line in lines] == [
        "[round 1/1, 1 of 2] a ",
        "[round 1/1, 2 of 2] b ",
        "[quality 1/1] a, b ",
    ]
    minutes = [int((re.findall(r"about (\d+) min left", line) or [0])[0]) for line in lines]
    assert minutes[0] >= minutes[1] >= minutes[2] >= 1


def test_resumed_sweep_excludes_finished_quality_from_the_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GenerationJudging, "is_done", lambda judging, record, job: record.quality is not None)
    stage = Stage(tmp_path, variants=["a", "b"], rounds=1)
    stage.sweep("--quality", "quick", "--runs", "2")
    assert stage.sweep(resume=True, rounds=2) == []
    assert "4 of 8 cells are there already; first guess: less than a minute to go" in stage.printed
    assert "[round 2/2, 1 of 2] b (less than a minute left)" in stage.printed
    assert "[quality" not in stage.printed


def test_quality_time_of_an_unmeasured_variant_follows_from_measured_ones() -> None:
    schedule = Schedule({"a": job_of(), "b": job_of()}, shared_imports=False)
    assert schedule.judging_s([("b",)]) == 80.0
    # Start of 10 s instead of 20 s, plus 60 s.
    schedule.learn(Task(0, "a", (0,), 1.0), [(0.0, 90.0, records.record("a", opened_at=10.0))])
    assert schedule.judging_s([("b",)]) == pytest.approx(70.0)


def test_recorded_processes_replace_the_first_guess_and_exclude_pauses() -> None:
    schedule = Schedule({"a": job_of()}, shared_imports=False)
    spans = [(100.0, 130.0), (9000.0, 9030.0)]
    lines = [
        OrderLine(round=0, variant="a", pid=1, start=start, end=end, worker=None, device="x") for start, end in spans
    ]
    cells = [records.cell().model_copy(update={"timed_at": (end - 2.0, end - 1.0)}) for _, end in spans]
    schedule.recall(lines, [records.record("a", cells=(cell,), opened_at=None) for cell in cells])
    share = 1 / len(job_of().grid.points())
    assert schedule.seconds([Task(1, "a", (0,), share)]) == pytest.approx(2 * 30.0)


def test_first_guess_of_the_quickstart_is_near_its_measured_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarker.hardware.gpu.has_gpu_driver", lambda: False)
    names = ("fp16", "fp16-compile", "int8", "gptq", "gptq-compile", "bnb4")
    content = read_config(Path("quickstart"))
    request = make_request(content, names, split_arguments((), "generation")[1], Settings(shared_imports=True))
    schedule = Schedule(request.jobs, shared_imports=True)
    tasks = missing_tasks(request.jobs, range(request.file.rounds), 0, finished=())
    # Measured on two idle AMD cores.
    measured_s = 804.0
    assert measured_s / FACTOR < schedule.seconds(tasks) + schedule.judging_s(schedule.judgements) < measured_s * FACTOR


def test_quality_time_follows_from_measured_step_and_prefill() -> None:
    # Run of qwen3-small: 5 ms per step, 18.85 ms for 26 tokens, and 48 s for 64 windows of 289 tokens.
    cell = records.cell(samples=(records.sample(0.2638, ttft_s=0.01885),))
    # The job has no `cpu_token_s`, because a measured step replaces the guess.
    job = SimpleNamespace(quality=SimpleNamespace(size="quick"))
    seconds = GenerationJudging().guess_s(job, records.record("int8", cells=(cell,)))  # type: ignore[arg-type]
    assert 48 / FACTOR < seconds < 48 * FACTOR


def test_start_time_is_that_of_the_first_process_with_cells() -> None:
    jobs: dict[str, Any] = {"int8": job_of()}
    schedule = Schedule(jobs, shared_imports=False)
    crashed = records.record("int8", cells=(), opened_at=None)
    measured, again = (records.record("int8", opened_at=opened_at) for opened_at in (112.0, 207.0))
    schedule.learn(Task(0, "int8", (0,), 1.0), [(50.0, 90.0, crashed), (100.0, 190.0, measured), (200.0, 290.0, again)])
    # A job without quality takes 60 s plus its start.
    assert schedule.judging_s([("int8",)]) == 12.0 + 60.0


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("Qwen/Qwen3-4B", 4.0),
        ("meta-llama/Llama-3.1-8B-Instruct", 8.0),
        ("SmolLM2-135M", 0.135),
        ("qwen3-30b-a3b", 3.0),
        ("qwen3-small", 0.0),
    ],
)
def test_number_of_parameters_is_read_from_the_model_name(model: str, billions: float) -> None:
    assert guess_parameters(model) == billions * 1e9


def test_dry_run_of_a_large_model_on_a_cpu_forecasts_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarker.hardware.read_environment.cores", lambda: 2)
    stage = Stage(tmp_path, rounds=5, new_tokens=[100, 250], environment=records.cpu_environment())
    stage.sweep(dry_run=True)
    text = " ".join(stage.printed.split())
    assert "10 processes, 20 cells, first guess: about 1.0 days" in text
    assert (
        "no GPU: an estimated 5.0 s per token for 4.0 billion parameters (0.8 GB/s per core); "
        "--model qwen3-small takes minutes" in text
    )
    assert not stage.results.exists()
    stage = Stage(tmp_path, rounds=5)
    stage.sweep(dry_run=True)
    assert "no GPU" not in stage.printed


def test_duration_of_24_hours_or_more_is_in_days() -> None:
    assert [approximate_duration(hours * 3600) for hours in (23, 24, 41)] == [
        "about 23 h 00 min",
        "about 1.0 days",
        "about 1.7 days",
    ]


def test_planning_does_not_import_torch() -> None:
    program = (
        "import sys; from benchmarker.schema.registry import workload_of; "
        "workload_of('generation').judging(); print('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"
    )


def test_first_guess_on_a_busy_host_is_a_range(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=5, load_per_core=4.0)
    stage.sweep(dry_run=True)
    load = "4.0 other programs per core; rounds that they disturb are left out"
    assert f"20 cells, first guess: about 7 min to 35 min ({load})" in " ".join(stage.printed.split())
    stage = Stage(tmp_path, rounds=5, load_per_core=0.1)
    stage.sweep(dry_run=True)
    assert "20 cells, first guess: about 8 min\n" in stage.printed


@pytest.mark.parametrize(
    ("counters", "others"),
    [
        ("8.30 7.00 6.00 13/181 4242", 8.3),
        # The programs of the last minute ended.
        ("8.30 7.00 6.00 1/181 4242", 0.0),
        ("0.02 0.10 0.20 3/181 4242", 0.02),
    ],
)
def test_load_counts_programs_that_run_now_and_ran_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counters: str, others: float
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    (tmp_path / "loadavg").write_text(f"{counters}\n")
    assert load_per_core(proc=tmp_path) == others / 2


def test_disturbed_attempt_widens_and_undisturbed_attempt_narrows_the_forecast() -> None:
    jobs: dict[str, Any] = {"a": job_of(), "b": job_of()}
    schedule = Schedule(jobs, shared_imports=False)
    first, *rest = [Task(number, name, (0,), 1.0) for number in range(5) for name in jobs]
    quiet_s = schedule.seconds([first])
    bad = records.cell(status="invalid", error_kind="disturbed", reason="other programs")
    disturbed, undisturbed = (records.record("a", cells=(cell,), opened_at=None) for cell in (bad, records.cell()))
    # Three attempts, each ten times as long as the guess. If all are disturbed, later rounds have one attempt.
    schedule.learn(first, [(number * 10 * quiet_s, (number + 1) * 10 * quiet_s, disturbed) for number in range(3)])
    assert schedule.seconds(rest, is_quiet=True) == pytest.approx(9 * quiet_s)
    assert schedule.seconds(rest) == pytest.approx(10 * 9 * quiet_s)
    for task in rest[:8]:
        schedule.learn(task, [(0.0, quiet_s, undisturbed)])
    assert schedule.duration(rest[8:], []) == approximate_duration(quiet_s)


def test_quality_time_is_guessed_from_an_undisturbed_process_if_possible() -> None:
    schedule = Schedule({"a": job_of()}, shared_imports=False, load_per_core=4.0)
    bad = records.cell(status="invalid", error_kind="disturbed", reason="other programs")
    disturbed = records.record("a", cells=(bad,), opened_at=500.0)
    # A job without quality takes 60 s plus its start of 20 s.
    assert schedule.judging_s([("a",)]) == 80.0
    assert schedule.duration([], [("a",)]) == "about 1 min to 7 min"
    schedule.learn(Task(0, "a", (0,), 1.0), [(0.0, 900.0, disturbed)])
    assert schedule.duration([], [("a",)]) == "about 9 min"
    schedule.learn(Task(1, "a", (0,), 1.0), [(0.0, 90.0, records.record("a", opened_at=10.0))])
    assert schedule.judging_s([("a",)]) == 70.0
    schedule.learn_judgement(("a",), 140.0)
    assert schedule.duration([], [("a",)]) == "about 2 min"
