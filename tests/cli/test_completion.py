"""What a shell completes: values of options, asked as bash asks for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def completed(line: str) -> list[str]:
    """Completions of the last word of a line."""
    words = line.split(" ")
    asked = {"_BENCHMARKER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **asked}
    command = [sys.executable, "-c", "from benchmarker.cli.app import main; main()"]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=60, check=False)
    assert answer.stderr == ""
    return answer.stdout.split("\n")[:-1] if answer.stdout.endswith("\n") else answer.stdout.split("\n")


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
def test_a_shell_completes_the_values_of_options(line: str, values: list[str]) -> None:
    assert completed(line) == values
