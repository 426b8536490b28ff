"""`benchmarker comply` on a folder: selected variants, findings file, time limit and interruptions."""

import json
import sys
from types import SimpleNamespace

import pytest

from benchmarker.cli import sweep_command
from benchmarker.comply import comply
from benchmarker.schema.comply_file import judged, not_applicable, read_findings
from tests import records
from tests.cli.test_cli import typed
from tests.faults.stage import Stage

DEVICE = records.environment().device.name


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a sweep of two variants on a machine with the recorded device, which passes its checks."""
    monkeypatch.setattr(comply, "check_planted_delay", lambda device: [])
    monkeypatch.setattr(comply, "check_memory", lambda device: judged("memory", "fine", holds=True))
    monkeypatch.setattr(comply, "environment", lambda device: SimpleNamespace(device=SimpleNamespace(name=DEVICE)))
    stage = Stage(tmp_path)
    stage.sweep()
    return stage.results


def script(tmp_path, text):
    """Write a program that replaces the interpreter of a variant's checks."""
    path = tmp_path / "checks"
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{text}\n")
    path.chmod(0o755)
    return str(path)


def finding_of(outcome="passed"):
    return json.dumps({"check": "clock", "outcome": outcome, "text": "x", "variant": "a"})


def of_variants(folder):
    return [
        (finding.variant, finding.check, finding.outcome)
        for finding in read_findings(folder).findings
        if finding.variant
    ]


def test_interruption_keeps_finished_variants(folder, monkeypatch):
    def in_process(job, paths, variant):
        if variant == "b":
            raise KeyboardInterrupt
        yield judged("clock", "fine", holds=True, variant=variant)

    monkeypatch.setattr(comply, "_in_process", in_process)
    code, _ = typed("comply", folder)
    assert code == 130
    assert of_variants(folder) == [("a", "clock", "passed")]


def test_variant_option_keeps_findings_of_other_variants(folder, monkeypatch):
    outcomes = iter([True, True, False])

    def in_process(job, paths, variant):
        yield judged("clock", "x", holds=next(outcomes), variant=variant)

    monkeypatch.setattr(comply, "_in_process", in_process)
    code, printed = typed("comply", folder)
    assert code == 0
    assert "  clock: passed" in printed
    code, printed = typed("comply", folder, "--variant", "b")
    assert code == 1
    assert of_variants(folder) == [("a", "clock", "passed"), ("b", "clock", "failed")]


def test_failed_process_keeps_its_findings_and_has_a_reason(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", script(tmp_path, f"print('{finding_of()}')\nsys.exit('no such model')"))
    findings = list(comply._in_process(folder / "job-a.json", [], "a"))
    assert [(finding.check, finding.outcome, finding.text) for finding in findings] == [
        ("clock", "passed", "x"),
        ("opened", "failed", "its process ended with 1: no such model"),
    ]


def test_variant_fails_after_the_time_limit(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(comply, "LIMIT_S", 1)
    monkeypatch.setattr(sys, "executable", script(tmp_path, "time.sleep(100)"))
    (finding,) = comply._in_process(folder / "job-a.json", [], "a")
    assert (finding.outcome, finding.text) == ("failed", "did not end within 1 s")


def test_records_of_another_device_are_not_applicable(folder, monkeypatch):
    monkeypatch.setattr(comply, "environment", lambda device: SimpleNamespace(device=SimpleNamespace(name="a CPU")))
    file = comply.comply(folder, [], lambda line: None)
    reason = f"the records are of {DEVICE}, and this device is a CPU"
    assert file.findings[-6:] == tuple(not_applicable(check, reason) for check in comply.CHECKS)


def test_config_is_measured_in_one_round_first(tmp_path, folder, monkeypatch):
    config, calls = tmp_path / "config.yaml", []
    monkeypatch.setattr(
        sweep_command, "sweep_config", lambda *arguments: calls.append((arguments[1], arguments[3].rounds)) or []
    )
    monkeypatch.setattr("benchmarker.sweep.resume.latest_sweep", lambda results, path: folder)
    monkeypatch.setattr(comply, "_in_process", lambda job, paths, variant: iter([]))
    code, printed = typed("comply", config, "--variant", "a")
    assert (code, calls) == (0, [(["a"], 1)])
    assert "checks passed on" in printed


def test_file_of_a_sweep_prints_its_folder(folder):
    code, printed = typed("comply", folder / "sweep.json")
    assert code == 2
    assert printed == f"error: {folder}/sweep.json: a file of a sweep; give its folder, {folder}\n"


def test_findings_are_not_written_into_a_folder_without_jobs(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(comply, "_in_process", lambda job, paths, variant: iter(()))
    output = tmp_path / "output"
    assert typed("comply", folder, "-o", output)[0] == 0
    assert [path.exists() for path in (folder / "comply.json", output / "comply.json")] == [False, True]
    for job in folder.glob("job-*.json"):
        job.unlink()
    code, printed = typed("comply", folder)
    assert code == 0
    assert (
        "note: comply.json is not written, because the folder has no job-NAME.json, which a sweep writes; "
        "--output FOLDER writes it"
    ) in " ".join(printed.split())
    assert not (folder / "comply.json").exists()
    assert typed("comply", folder, "-o", output)[0] == 0
    assert read_findings(output).of("not applicable")


def test_unwritable_output_is_refused_before_the_checks(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(comply, "check_planted_delay", lambda device: pytest.fail("checks began"))
    (tmp_path / "file").touch()
    code, printed = typed("comply", folder, "-o", tmp_path / "file")
    assert code == 2
    assert printed.endswith("results cannot be written there (File exists); choose another folder with --output\n")
