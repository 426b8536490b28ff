"""Completion of option values through the variables that bash sets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarker.cli.app import main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("benchmarker run --quant bnb", ["bnb4", "bnb8"]),
        ("benchmarker run --engine c", ["cuda_graph", "compile"]),
        ("benchmarker generate --engine n", ["native"]),
        ("benchmarker run --config configs/quickstart.yaml --variant gptq", ["gptq", "gptq-compile"]),
        ("benchmarker compare results/reference/quickstart --sort perp", ["perplexity"]),
        ("benchmarker compare results/reference/quickstart --columns ttft,dec", ["ttft,decode tok/s"]),
        ("benchmarker compare --format c", ["csv"]),
        ("benchmarker run --config configs/nowhere.yaml --variant g", [""]),
    ],
)
def test_bash_completes_option_values(
    line: str, values: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_BENCHMARKER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    monkeypatch.setattr(sys, "argv", ["benchmarker"])
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr() == ("".join(f"{value}\n" for value in values), "")
