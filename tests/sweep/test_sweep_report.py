"""A sweep ends with a report; a failure to draw the report does not fail the sweep."""

from __future__ import annotations

from pathlib import Path

from benchmarker.cli.sweep_command import REPORT
from tests.faults.stage import Stage


def test_sweep_writes_a_report_and_prints_its_path(tmp_path: Path) -> None:
    stage = Stage(tmp_path, report=REPORT)
    assert stage.sweep() == []
    page = tmp_path / "results" / "report.html"
    assert f"report: {page}" in stage.printed
    assert "<title>Qwen/Qwen3-4B on NVIDIA H100 80GB HBM3</title>" in page.read_text()


def test_failed_report_does_not_fail_the_sweep(tmp_path: Path) -> None:
    stage = Stage(tmp_path, report=("sh", "-c", "echo 'ValueError: no colour' >&2; exit 1"))
    assert stage.sweep() == []
    assert "no report: ValueError: no colour; try again with: benchmarker report" in stage.printed
    assert len(stage.records()) == 2
