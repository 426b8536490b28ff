"""What the commands print about the reference records, word for word. See tests/unchanged.py where it should change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.test_cli import typed
from tests.unchanged import hold, hold_names

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
    **{f"{folder}-{name}": (*words, folder) for folder in FOLDERS for name, words in COMMANDS.items()},
    **{name: (*words, "h100-runtimes", "h200-runtimes") for name, words in TWO_FOLDERS.items()},
}
LONG_NUMBER = re.compile(r"\d+\.\d{10,}(?:e[+-]\d+)?")


def printed(words: tuple[str, ...]) -> str:
    """What a command prints, and how it exits. The last digits of a float are left to the version of scipy."""
    code, text = typed(*words)
    text = LONG_NUMBER.sub(lambda number: f"{float(number[0]):.10g}", text)
    return f"{text}exit code {code}\n"


@pytest.mark.parametrize("name", CASES)
def test_what_is_printed_about_the_references_is_what_was_printed(name, monkeypatch):
    monkeypatch.chdir(REFERENCES)
    hold(TEXTS / name, printed(CASES[name]))


def test_no_text_is_of_a_folder_that_is_gone():
    hold_names(TEXTS, CASES)


ALL_FOLDERS = sorted(path.name for path in REFERENCES.iterdir())


@pytest.mark.parametrize("folder", ALL_FOLDERS)
def test_a_budget_of_every_reference_is_checked(folder):
    # A budget that no variant keeps is exit code 1.
    assert typed("compare", "--budget", "memory<6GiB", REFERENCES / folder)[0] in (0, 1)


@pytest.mark.parametrize("folder", sorted({*ALL_FOLDERS} - {*FOLDERS}))
@pytest.mark.parametrize("words", [("compare", "--all"), ("explain",)], ids=" ".join)
def test_a_command_succeeds_on_every_other_reference(folder, words):
    assert typed(*words, REFERENCES / folder)[0] == 0
