"""The parent process of a sweep: arguments, order of measurements, reuse of records and the lock on the folder."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarker.checkpoints.cache import DESCRIPTION, Description
from benchmarker.cli.sweep_command import split_arguments, sweep_config
from benchmarker.core.console import Terminal
from benchmarker.core.errors import ModelError, ResultsError, SpecError
from benchmarker.core.formatting import approximate_duration
from benchmarker.schema.config_io import read_experiment
from benchmarker.schema.record import DeviceFacts
from benchmarker.schema.record_io import LOCK_OWNER, UNFINISHED, read_record, write_json
from benchmarker.schema.registry import workload_of
from benchmarker.sweep.request import Options, Settings, SweepRequest, chosen, make_request, read_config, rounds_of
from benchmarker.sweep.resume import LOCK, SweepFile, locked
from benchmarker.sweep.sweep_plan import Task, order, without_given_up
from benchmarker.sweep.sweep_state import LiveTable
from benchmarker.workloads.generation.spec import GenerationJob
from tests.faults.stage import Stage

ROOT = Path(__file__).parents[2]

CONFIG = Path("configs/qwen3-4b.yaml")


def test_missing_model_is_reported_once_before_any_process(tmp_path) -> None:
    def raise_missing(job: GenerationJob) -> None:
        raise ModelError(f"{job.model.id}: no such folder")

    stage = Stage(tmp_path, look_for=raise_missing)
    with pytest.raises(ModelError, match=r"^Qwen/Qwen3-4B: no such folder$"):
        stage.sweep()
    assert not stage.results.exists()
    # Existing records are still compared.
    stage.look_for = lambda job: None
    stage.sweep()
    stage.look_for = raise_missing
    assert stage.sweep(resume=True) == []


@pytest.mark.parametrize("model", ["./nothing", "/no/such", "m" * 300])
def test_missing_model_folder_is_refused_in_the_plan(tmp_path, model) -> None:
    with pytest.raises(ModelError, match=f"^{model}: no such folder"):
        Stage(tmp_path, model=model).sweep(dry_run=True)


def test_mixing_random_and_trained_weights_is_refused_in_the_plan(tmp_path) -> None:
    description = Description(kind="dummy", model="qwen3-tiny", options={}, created="2026-01-01")
    (tmp_path / DESCRIPTION).write_text(description.model_dump_json())
    config = tmp_path / "config.yaml"
    config.write_text(f"variants: [{{name: a, checkpoint: {tmp_path}}}, {{name: b, checkpoint: qwen3-small}}]")
    with pytest.raises(SpecError) as caught:
        sweep_config(config, [], Terminal(), Settings(dry_run=True))
    assert str(caught.value) == (
        "the weights of a are random, and those of b are not, so their records would not compare; "
        "name variants of one kind"
    )
    assert sweep_config(config, ["a"], Terminal(), Settings(dry_run=True)) == []
    config.write_text(f"variants: [{{name: a, checkpoint: {tmp_path}}}, {{name: b, quant: gptq, checkpoint: no/such}}]")
    with pytest.raises(SpecError, match=r"those of b \(no/such, no folder here\) are not"):
        sweep_config(config, [], Terminal(), Settings(dry_run=True))


def test_names_and_options_can_be_interleaved() -> None:
    arguments = ["fp16", "--runs", "3", "int8", "--no-profile", "--warmup=2", "--quiet", "results/x"]
    names, options = split_arguments(arguments, "generation")
    assert names == ["fp16", "int8", "results/x"]
    assert options.text == ("--runs", "3", "--no-profile", "--warmup=2")
    assert options.display == ("--quiet",)
    assert options.typed == {"procedure.runs": 3, "procedure.profile": False, "procedure.warmup": 2}
    names, options = split_arguments(["--prompt", "-- a prompt", "fp16"], "generation")
    assert (names, options.text) == (["fp16"], ("--prompt", "-- a prompt"))
    with pytest.raises(SpecError, match=r"no option '--run'; did you mean '--runs'\?"):
        split_arguments(["--run", "3"], "generation")
    with pytest.raises(SpecError, match="--variant: the names of variants have no option before them"):
        split_arguments(["--variant", "int8"], "generation")
    with pytest.raises(SpecError, match="--baseline: is a key of the config"):
        split_arguments(["--baseline", "int8"], "generation")


def test_plan_states_entries_of_exclude_without_a_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "sweep.yaml"
    exclude = "[{prompt_tokens: 26, new_tokens: 8}, {prompt_tokens: 3}]"
    grid = f"{{prompt_tokens: [3, 26], new_tokens: [8, 16], exclude: {exclude}}}"
    config.write_text(f"model: {{id: qwen3-small}}\ngrid: {grid}\nvariants: [{{quant: fp16}}]\n")
    for arguments, unused in (([], []), (["--prompt-tokens", "26"], ["prompt_tokens 3"])):
        assert sweep_config(config, arguments, Terminal(), Settings(dry_run=True)) == []
        lines = [line for line in capsys.readouterr().out.splitlines() if "exclude" in line]
        assert lines == [f"  exclude: no cell has {entry}; this entry has no effect" for entry in unused]


def test_all_variants_are_the_default_and_folders_are_not_variants() -> None:
    experiment = read_experiment(CONFIG)
    assert chosen(experiment, ["int8", "fp16"], CONFIG) == (["fp16", "int8"], None)
    everything = [variant.name for variant in experiment.variants]
    assert chosen(experiment, ["results/old"], CONFIG) == (everything, Path("results/old"))


def test_unknown_variant_is_refused_with_a_suggestion() -> None:
    with pytest.raises(SpecError, match=r"no variant 'int-8'; did you mean 'int8'\?"):
        chosen(read_experiment(CONFIG), ["int-8"], CONFIG)
    with pytest.raises(SpecError, match="no variant and no folder 'records'; there is "):
        chosen(read_experiment(CONFIG), ["records"], CONFIG, is_resumed=True)
    with pytest.raises(SpecError, match=r"no variant '2048'; numbers of one option have commas between them: 512,2048"):
        chosen(read_experiment(CONFIG), ["2048"], CONFIG)
    with pytest.raises(SpecError, match=r"no variant 'fp16,int8'; write names with spaces between them: fp16 int8"):
        chosen(read_experiment(CONFIG), ["fp16,int8"], CONFIG)


def test_quick_is_one_round_and_publish_is_ten() -> None:
    assert rounds_of(None, quick=True, publish=False) == 1
    assert rounds_of(None, quick=False, publish=True) == 10
    assert rounds_of(None, quick=False, publish=False) is None
    with pytest.raises(SpecError, match="give one of them"):
        rounds_of(3, quick=True, publish=False)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6])
def test_variants_have_equal_mean_positions_in_each_pair_of_rounds(count: int) -> None:
    variants = [f"v{number}" for number in range(count)]
    for pair in range(5):
        first, second = order(variants, 2 * pair, 7), order(variants, 2 * pair + 1, 7)
        assert sorted(first) == variants
        assert second == first[::-1]
        assert {first.index(name) + second.index(name) for name in variants} == {count - 1}


def test_variants_take_every_position_in_an_order_set_by_the_seed() -> None:
    variants = ["a", "b", "c", "d", "e"]
    orders = [order(variants, number, 3) for number in range(10)]
    for variant in variants:
        assert {names.index(variant) for names in orders} == set(range(5))
    assert order(variants, 4, 3) == orders[4]
    assert orders[0] == variants
    assert len({tuple(order(variants, 2, seed)) for seed in range(50)}) == 4
    assert ["".join(order(["a", "b"], number, 1)) for number in range(4)] == ["ab", "ba", "ba", "ab"]


def test_each_round_measures_each_variant_in_one_process(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a", "b", "c"], rounds=3)
    assert stage.sweep() == []
    saved = stage.records()
    assert sorted((record.round, record.variant.name) for record in saved) == list(
        itertools.product(range(3), ["a", "b", "c"])
    )
    assert {record.status for record in saved} == {"complete"}
    started = [line.split("]")[1].split()[0] for line in stage.printed.splitlines() if line.startswith("[round")]
    assert started == [name for number in range(3) for name in order(["a", "b", "c"], number, 1)]
    assert json.loads((stage.results / "sweep.json").read_text())["seed"] == 1
    lines = stage.order()
    assert [(line.round, line.variant) for line in lines] == [
        (number, name) for number in range(3) for name in order(["a", "b", "c"], number, 1)
    ]
    assert all(before.end <= after.start for before, after in itertools.pairwise(lines))
    assert {line.worker for line in lines} == {None}


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=5)
    assert stage.sweep(dry_run=True) == []
    assert "plan: 5 rounds of a, b" in stage.printed
    assert "26 x 50; 26 x 100" in stage.printed
    assert "10 processes, 20 cells, first guess: about 7 min" in stage.printed
    assert not stage.results.exists()


@pytest.mark.parametrize(("shared_imports", "minutes"), [(False, 14), (True, 12)])
def test_first_guess_counts_shared_imports_once_per_round(shared_imports: bool, minutes: int, tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a", "b", "c", "d"], rounds=5)
    assert stage.sweep(dry_run=True, shared_imports=shared_imports) == []
    assert f"20 processes, 40 cells, first guess: about {minutes} min" in stage.printed


def test_cell_is_printed_before_the_profile(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"], new_tokens=[50], is_profiled=True)
    assert stage.sweep() == []
    assert stage.printed.index("26 x 50: ") < stage.printed.index("profiling one generation")


def test_resume_with_more_rounds_reuses_existing_records(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"])
    stage.sweep("--runs", "2")
    first = {record.run_id for record in stage.records()}
    assert stage.sweep(resume=True, rounds=3) == []
    # The recorded process took less than a second; the first guess is 40 s.
    assert "2 of 6 cells are there already; first guess: less than a minute to go" in stage.printed
    assert len(stage.records()) == 3
    assert json.loads((stage.results / "sweep.json").read_text())["rounds"] == 3
    assert first < {record.run_id for record in stage.records()}


def test_resume_repeats_omitted_arguments(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a", "b", "c"])
    stage.sweep("b", "--runs", "2")
    stage.sweep(resume=True)
    assert "plan: 1 round of b\n" in stage.printed
    stage.sweep("a", "--runs", "2", str(stage.results), resume=True, output=None)
    assert [cell[1] for cell in stage.cells()] == ["a", "a", "b", "b"]


def test_second_resume_repeats_the_latest_arguments(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"])
    stage.sweep("--runs", "2")
    stage.sweep("a", "--runs", "2", "--warmup", "4", str(stage.results), resume=True, output=None)
    assert "0 of 2 cells are there already" in stage.printed
    stage.sweep(resume=True)
    assert "2 of 2 cells are there already" in stage.printed


@pytest.mark.parametrize("flag", ["--quiet", "--verbose"])
def test_verbosity_options_do_not_change_the_sweep(tmp_path: Path, flag: str) -> None:
    stage = Stage(tmp_path, variants=["a", "b"])
    stage.sweep("a", "--warmup", "4", flag)
    stage.sweep(flag, resume=True)
    assert "plan: 1 round of a\n" in stage.printed
    assert "2 of 2 cells are there already" in stage.printed
    assert "replaces" not in stage.printed
    assert json.loads((stage.results / "sweep.json").read_text())["arguments"] == ["a", "--warmup", "4"]


def test_replaced_options_are_reported(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a", "b"])
    stage.sweep("a", "--runs", "2")
    stage.sweep("--warmup", "4", resume=True)
    assert "--resume: 'a b --warmup 4' replaces the earlier 'a --runs 2'\n" in stage.printed
    stage.sweep(resume=True)
    assert "replaces" not in stage.printed


def test_sweep_file_contains_the_baseline(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a", "b"], baseline="b")
    stage.sweep()
    file = stage.results / "sweep.json"
    written = json.loads(file.read_text())
    assert written["baseline"] == "b"
    del written["baseline"]
    file.write_text(json.dumps(written))
    stage.sweep(resume=True)
    assert "4 of 4 cells are there already" in stage.printed
    assert json.loads(file.read_text())["baseline"] == "b"


def test_shipped_config_is_matched_by_name_and_by_path() -> None:
    request = {"arguments": (), "rounds": 5, "seed": 1, "started_at": "now"}
    by_path, by_name = (SweepFile(config=name, **request) for name in ("configs/quickstart.yaml", "quickstart"))
    for sweep in (by_path, by_name):
        assert sweep.is_of(Path("quickstart"))
        assert sweep.is_of(Path("configs/quickstart.yaml"))
        assert not sweep.is_of(Path("qwen3-4b"))


def test_folder_of_another_sweep_is_refused(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "one", variants=["a"])
    stage.sweep()
    other = Stage(tmp_path / "two", variants=["a"])
    with pytest.raises(ResultsError, match=r"the sweep in .*results is of .*one.config.yaml, not of .*two.config.yaml"):
        other.sweep(str(stage.results), resume=True, output=None)
    with pytest.raises(ResultsError, match="there is no folder"):
        other.sweep(resume=True)
    (stage.results / "sweep.json").unlink()
    with pytest.raises(ResultsError, match="holds records that no sweep made"):
        stage.sweep(resume=True)
    assert sorted(path.name[:4] for path in stage.results.glob("*.json")) == ["a-ro", "job-"]


def test_only_unfinished_files_are_removed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"])
    stage.results.mkdir()
    for name in (".notes.md.tmp", f".a-round1.json.x{UNFINISHED}"):
        (stage.results / name).touch()
    stage.sweep()
    assert [path.name for path in stage.results.glob(".*tmp")] == [".notes.md.tmp"]


def test_records_of_another_benchmarker_version_are_not_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path, variants=["a"])
    monkeypatch.setattr("benchmarker.execution.jobs.__version__", "0.0.9")
    stage.sweep()
    monkeypatch.undo()
    stage.sweep(resume=True)
    assert "0 of 2 cells are there already" in stage.printed


def test_cell_from_a_different_environment_is_measured_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"])
    stage.sweep()
    device = stage.environment.device
    stage.environment = stage.environment.model_copy(
        update={"device": device.model_copy(update={"driver": "590.1"}), "packages": {"torch": "3.0"}}
    )
    stage.sweep(resume=True)
    assert "not used: measured under other circumstances" in stage.printed
    assert "0 of 2 cells are there already" in stage.printed
    assert len(stage.records()) == 1
    assert len(list(stage.results.glob("*.json.set-aside"))) == 1


def _on_card(stage: Stage, uuid: str) -> None:
    device: DeviceFacts = stage.environment.device.model_copy(update={"uuid": uuid})
    stage.environment = stage.environment.model_copy(update={"device": device})


def test_incomplete_round_of_another_gpu_is_measured_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=2, faults=[{"variant": "a", "round": 1, "at": "cell 1", "do": "exit", "times": 1}])
    _on_card(stage, "GPU-1")
    stage.sweep()
    assert len([cell for cell in stage.cells() if cell[3] == "ok"]) == 7
    _on_card(stage, "GPU-2")
    stage.sweep(resume=True)
    assert "4 of 8 cells are there already" in stage.printed
    assert "measured on another card, and its round is incomplete" in stage.printed
    assert {(record.round, record.environment.device.uuid) for record in stage.records()} == {
        (0, "GPU-1"),
        (1, "GPU-2"),
    }


def test_invalid_records_are_reported_and_valid_records_are_reused(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=3, variants=["a"])
    stage.sweep()
    truncated, edited, _ = sorted(stage.results.glob("a-round*.json"))
    truncated.write_text(truncated.read_text()[:700])
    edited.write_text(edited.read_text().replace('"latency_s": 1.01', '"latency_s": "fast"'))
    stage.sweep(resume=True)
    assert f"{truncated}: not valid JSON" in stage.printed
    assert f"{edited}: cells[0].samples[1].latency_s: input should be a valid number" in stage.printed
    assert "2 of 6 cells are there already" in stage.printed
    assert len([record for record in stage.records() if record.status == "complete"]) == 3


def test_cell_with_too_few_samples_is_not_reused(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"], new_tokens=[50])
    stage.sweep()
    (path,) = stage.results.glob("a-*.json")
    record = read_record(path)
    (cell,) = record.cells
    write_json(record.model_copy(update={"cells": (cell.model_copy(update={"samples": cell.samples[:1]}),)}), path)
    stage.sweep(resume=True)
    assert "0 of 1 cells are there already" in stage.printed


def test_records_are_reused_despite_a_broken_sweep_file(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.sweep()
    (stage.results / "sweep.json").write_text("{")
    assert stage.sweep(resume=True) == []
    assert "sweep.json" in stage.printed
    assert "4 of 4 cells are there already" in stage.printed


def test_resume_finds_the_latest_sweep_of_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stage = Stage(tmp_path, variants=["a"])
    assert stage.sweep(resume=True, output=None) == []
    assert "there is no sweep of this config to resume; this is a new one" in stage.printed
    assert stage.sweep(resume=True, output=None) == []
    assert "2 of 2 cells are there already" in stage.printed


def edit_records(stage: Stage, variant: str, **changes: Any) -> None:
    for path in stage.results.glob(f"{variant}-*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def resumed(stage: Stage, **settings: Any) -> SweepRequest:
    names = [str(stage.results)]
    options = Options({}, "auto", (), ())
    return make_request(read_config(stage.config), names, options, Settings(resume=True, **settings))


def test_resumed_sweep_keeps_its_original_settings(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"])
    stage.sweep("--runs", "2", allow_shared=True, load_timeout_s=9.0, cell_timeout_s=8.0)
    settings = resumed(stage, cell_timeout_s=7.0).settings
    assert (settings.allow_shared, settings.load_timeout_s, settings.cell_timeout_s) == (True, 9.0, 7.0)
    file = json.loads((stage.results / "sweep.json").read_text())
    file["settings"] |= {"places": "ray", "runtime_env": "a", "shared_imports": True}
    (stage.results / "sweep.json").write_text(json.dumps(file))
    settings = resumed(stage).settings
    assert (settings.places, settings.runtime_env, settings.shared_imports) == ("ray", Path("a"), True)


def test_resumed_sweep_keeps_its_import_mode(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.sweep("--runs", "2")
    request = resumed(stage, shared_imports=True)
    assert not request.settings.shared_imports
    note = f"--resume: the sweep in {stage.results} began without --shared-imports and goes on without it"
    assert request.notes == (note,)
    edit_records(stage, "a", forked=True)
    assert stage.sweep(resume=True, shared_imports=True) == []
    assert "measured under other circumstances (model, options, procedure, imports, device or" in stage.printed
    assert "2 of 4 cells are there already" in stage.printed


def test_sweep_with_incomparable_records_fails(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=2)
    stage.sweep("--runs", "2")
    edit_records(stage, "a-round2", forked=True)
    stage.rounds = 1
    assert stage.sweep(rounds=1, resume=True) == ["comparison"]
    assert "no comparison: these records do not compare: libraries imported is " in stage.printed


def test_unrelated_json_files_in_the_folder_are_ignored(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"])
    stage.results.mkdir()
    (stage.results / "notes.json").write_text("{}")
    stage.sweep("--runs", "2")
    stage.sweep(resume=True)
    assert "2 of 2 cells are there already" in stage.printed
    assert "notes.json" not in stage.printed


def test_new_sweep_into_a_folder_with_records_is_refused(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"])
    stage.sweep()
    with pytest.raises(ResultsError, match="there are records already; add --resume to resume that sweep"):
        stage.sweep()


def _hold(folder: Path) -> None:
    with locked(folder):
        (folder / "held").touch()
        time.sleep(60)


def test_concurrent_sweep_is_refused_until_the_first_process_ends(tmp_path: Path) -> None:
    holder = multiprocessing.get_context("fork").Process(target=_hold, args=(tmp_path,))
    holder.start()
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with (
        pytest.raises(ResultsError, match=rf"another sweep \(process {holder.pid}\) is writing there"),
        locked(tmp_path),
    ):
        pass
    holder.kill()
    holder.join()
    with locked(tmp_path):
        assert (tmp_path / LOCK_OWNER).read_text().startswith(f"process {os.getpid()} on ")
    assert not (tmp_path / LOCK_OWNER).exists()


def test_stale_lock_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text('{"pid": 1')
    (tmp_path / LOCK_OWNER).write_text("process 1 on elsewhere")
    with locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


@pytest.mark.parametrize(
    ("owner", "message"),
    [
        (None, "another sweep is writing there"),
        ("process 7 on elsewhere", r"another sweep \(process 7 on elsewhere\) is writing there"),
    ],
)
def test_refusal_names_the_process_that_holds_the_lock(tmp_path: Path, owner: str | None, message: str) -> None:
    with locked(tmp_path):
        (tmp_path / LOCK_OWNER).unlink()
        if owner:
            (tmp_path / LOCK_OWNER).write_text(owner)
        with pytest.raises(ResultsError, match=message), locked(tmp_path):
            pass


def test_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError, match="choose another folder with --output"), locked(tmp_path / "file"):
        pass


def test_forecast_is_updated_with_measured_times(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=4, variants=["a"])
    stage.sweep()
    lines = [line for line in stage.printed.splitlines() if line.startswith("[round")]
    assert lines[0].endswith("(about 3 min left)")
    assert lines[-1].endswith("(less than a minute left)")
    assert [approximate_duration(value) for value in (10, 700, 9600)] == [
        "less than a minute",
        "about 12 min",
        "about 2 h 40 min",
    ]


def test_abandoned_cells_are_not_counted_in_the_progress(tmp_path: Path) -> None:
    unsupported = {"variant": "b", "at": "load", "do": "unsupported"}
    stage = Stage(tmp_path, rounds=3, variants=["a", "b"], new_tokens=[50], faults=[unsupported])
    stage.sweep()
    progress = [line.split(" (")[0] for line in stage.printed.splitlines() if line.startswith(("[round", "after"))]
    assert progress == [
        "[round 1/3, 1 of 6] a",
        "[round 1/3, 2 of 6] b",
        "after 1 of 3 rounds:",
        "[round 2/3, 3 of 4] a",
        "after 2 of 3 rounds:",
        "[round 3/3, 4 of 4] a",
    ]


def test_abandoned_cells_are_removed_from_later_rounds() -> None:
    tasks = [Task(1, "a", (0, 1, 2, 3), 1.0), Task(1, "b", (1, 2), 0.5)]
    assert without_given_up(tasks, {("a", 3), ("b", 1), ("b", 2)}) == [Task(1, "a", (0, 1, 2), 0.75)]


def test_each_variant_is_profiled_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=3, variants=["a"])
    stage.sweep()
    assert [record.procedure["profile"] for record in stage.records()] == [True, False, False]


def test_profile_is_repeated_after_a_crash(tmp_path: Path) -> None:
    crash = {"variant": "a", "at": "cell 0", "do": "SIGKILL", "times": 1}
    stage = Stage(tmp_path, variants=["a"], rounds=2, faults=[crash])
    stage.sweep()
    assert sorted((record.round, record.status, record.procedure["profile"]) for record in stage.records()) == [
        (0, "complete", True),
        (0, "failed", True),
        (1, "complete", False),
    ]


def test_quality_options_override_the_config_and_are_saved() -> None:
    cases = {(): ("quick", ()), ("--quality", "off"): ("off", ()), ("--tasks", "arc_easy"): ("quick", ("arc_easy",))}
    for arguments, expected in cases.items():
        options = split_arguments(arguments, "generation")[1]
        request = make_request(read_config(Path("quickstart")), ["fp16"], options, Settings())
        quality = request.jobs["fp16"].quality
        assert ((quality.size, quality.tasks), request.file.arguments) == (expected, ("fp16", *arguments))


def test_live_table_fits_the_terminal_width() -> None:
    table = LiveTable(workload_of("attention"))
    table.rates["naive", 0] = [2.5, 3.5, 3.0]
    table.failures["flash", 1] = "unsupported"
    points = [SimpleNamespace(seq_len=128 << doubling, batch_size=1, mode="forward") for doubling in range(6)]
    *headings, naive, flash = table.text(["naive", "flash"], points, 99, running=["flash"]).splitlines()
    assert max(map(len, headings)) <= 99
    assert " ".join(headings[-1].split()) == "TFLOP/s" + " forward" * 6
    assert naive.split() == ["naive", "3.000", *"·····"]
    assert flash.split() == ["flash", "…", "not", "supported", "…", *"…………"]
