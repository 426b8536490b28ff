"""Golden output of the commands on the reference records. See tests/unchanged.py for intended changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.test_cli import typed
from tests.unchanged import check_golden, check_golden_files

ROOT = Path(__file__).parents[2]
TEXTS = Path(__file__).parents[1] / "data" / "unchanged"
REFERENCES = ROOT / "results" / "reference"
FOLDERS = (
    *("quickstart", "h100-native", "h100-runtimes-2", "h100-shapes", "h100-energy", "h100-attention"),
    *("h100-finetune", "h100-mixers", "h200-mixers-block", "h100-x2-context-parallel"),
)
COMMANDS = {
    "brief.txt": ("compare",),
    "compare.md": ("compare", "--all", "--format", "markdown"),
    "explain.md": ("explain", "--format", "markdown"),
}
TWO_FOLDERS = {
    "h100-runtimes-h200-runtimes-gate.md": ("compare", "--force", "--fail-if", "slower:5%", "--format", "markdown"),
    "h100-runtimes-h200-runtimes-refused.txt": ("compare",),
}
CASES = {
    **{f"{folder}-{name}": (*arguments, folder) for folder in FOLDERS for name, arguments in COMMANDS.items()},
    **{name: (*arguments, "h100-runtimes", "h200-runtimes") for name, arguments in TWO_FOLDERS.items()},
}
LONG_NUMBER = re.compile(r"\d+\.\d{10,}(?:e[+-]\d+)?")


def output_of(arguments: tuple[str, ...]) -> str:
    """Return the output and exit code of a command, with floats rounded to 10 digits: versions of scipy differ."""
    code, text = typed(*arguments)
    text = LONG_NUMBER.sub(lambda number: f"{float(number[0]):.10g}", text)
    return f"{text}exit code {code}\n"


@pytest.mark.parametrize("name", CASES)
def test_output_on_reference_records_is_unchanged(name, monkeypatch):
    monkeypatch.chdir(REFERENCES)
    check_golden(TEXTS / name, output_of(CASES[name]))


def test_every_golden_output_is_used():
    check_golden_files(TEXTS, CASES)


ALL_FOLDERS = sorted(path.name for path in REFERENCES.iterdir())


@pytest.mark.parametrize("folder", ALL_FOLDERS)
def test_budget_runs_on_every_reference(folder):
    # The exit code is 1 if no variant fits the budget.
    assert typed("compare", "--budget", "memory<6GiB", REFERENCES / folder)[0] in (0, 1)


@pytest.mark.parametrize("folder", sorted({*ALL_FOLDERS} - {*FOLDERS}))
@pytest.mark.parametrize("arguments", [("compare", "--all"), ("explain",)], ids=" ".join)
def test_commands_succeed_on_the_remaining_references(folder, arguments):
    assert typed(*arguments, REFERENCES / folder)[0] == 0
