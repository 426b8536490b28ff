"""An edited or damaged record costs one line, in every command that reads records, and never a traceback."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import typed

REFERENCES = Path(__file__).parents[2] / "results" / "reference"
SOURCES = {
    "quickstart": ["gptq-compile-round1-20261122-102002-d740fb.json", "fp16-round1-20261122-101920-1df5cb.json"],
    "h100-runtimes": [
        "int8-compile-209f5782-20261122-082241-10a208.json",
        "fp16-eager-c48f79e4-20261121-212256-867bd2.json",
    ],
    "h100-energy": [
        "gptq-compile-8979ffb6-20261122-022637-f0ed0d.json",
        "fp16-compile-26ca6748-20261121-235358-84d879.json",
    ],
}
"""A record to edit, and one to compare it with, that together have every part that a record can have."""
MISSING = object()
VALUES = {
    "missing": MISSING, "null": None, "negative": -1, "zero": 0, "1e308": 1e308, "1e-308": 1e-308, "huge": 10**400,
    "empty text": "", "text": "x", "list": [], "object": {}, "true": True,
}  # fmt: skip
COMMANDS = (("compare",), ("compare", "--format", "json"), ("explain",), ("explain", "--format", "json"), ("verify",))
SHARE = 12
"""One value of so many for each field, chosen by a fixed seed; all of them take twelve times as long."""
EVERY = 3
"""One field of so many."""

Place = tuple[str | int, ...]


def places(part: Any, place: Place = ()) -> Iterator[Place]:
    """Every key below this part; of a list the first and the last member."""
    if isinstance(part, dict):
        keys = list(part)
    else:
        keys = sorted({0, len(part) - 1}) if isinstance(part, list) and part else []
    for key in keys:
        yield (*place, key)
        yield from places(part[key], (*place, key))


def edited(path: Path, place: Place, value: Any) -> str:
    record = json.loads(path.read_bytes())
    part = record
    for key in place[:-1]:
        part = part[key]
    if value is MISSING:
        del part[place[-1]]
    else:
        part[place[-1]] = value
    return json.dumps(record)


def fields(folder: str) -> list[Place]:
    """Every field once: of a field that a list's members share, the first member's; of a field that the record of an
    earlier folder has too, that record's."""
    found: dict[Place, Place] = {}
    for name in SOURCES:
        record = json.loads((REFERENCES / name / SOURCES[name][0]).read_bytes())
        own = {tuple(0 if isinstance(key, int) else key for key in place): place for place in places(record)}
        if name == folder:
            return [place for field, place in own.items() if field not in found]
        found |= own
    raise AssertionError(folder)


def say(words: tuple[str, ...], *paths: Path) -> tuple[int, str]:
    """As `typed`, which fails with the traceback of anything but an exit; an error must be one line."""
    code, printed = typed(*words, *paths)
    assert code in (0, 1, 2)
    if code == 2:
        assert printed.startswith("error: ")
        assert printed.count("\n") == 1
    return code, printed


@pytest.mark.parametrize("folder", SOURCES)
def test_no_field_of_a_record_can_be_edited_into_a_traceback(tmp_path, folder):
    chance = random.Random(7)
    name, beside = SOURCES[folder]
    shutil.copy(REFERENCES / folder / beside, tmp_path / beside)
    for number, place in enumerate(fields(folder)[::EVERY]):
        for what in chance.sample(sorted(VALUES), len(VALUES) // SHARE):
            (tmp_path / name).write_text(edited(REFERENCES / folder / name, place, VALUES[what]))
            try:
                say(COMMANDS[number % len(COMMANDS)], tmp_path)
            except Exception as error:
                raise AssertionError(f"{place} {what}: {' '.join(COMMANDS[number % len(COMMANDS)])}") from error


def test_an_absurd_time_is_one_line_that_names_the_file_and_the_field(tmp_path):
    name, beside = SOURCES["quickstart"]
    path = tmp_path / name
    path.write_text(edited(REFERENCES / "quickstart" / name, ("cells", 0, "samples", 0, "latency_s"), 1e308))
    line = f"{path}: cells[0].samples[0].latency_s: input should be less than or equal to 1000000000, not 1e+308"
    for words in (*COMMANDS, ("report",)):
        code, printed = say(words, path)
        assert code == 2
        assert line in printed
    shutil.copy(REFERENCES / "quickstart" / beside, tmp_path / beside)
    code, printed = say(("verify",), tmp_path)
    assert (code, printed.splitlines()[0]) == (1, f"cannot be read: {line}")


def test_verify_reads_a_huge_number_of_runs_and_a_cell_without_memory(tmp_path):
    name, _ = SOURCES["quickstart"]
    for place, value, code in ((("procedure", "runs"), 10**400, 1), (("cells", 0, "memory"), MISSING, 0)):
        (tmp_path / name).write_text(edited(REFERENCES / "quickstart" / name, place, value))
        assert say(("verify",), tmp_path)[0] == code


def test_a_record_without_a_setup_time_is_compared_explained_and_verified(tmp_path):
    name, _ = SOURCES["h100-runtimes"]
    (tmp_path / name).write_text(edited(REFERENCES / "h100-runtimes" / name, ("engine", "setup_s"), MISSING))
    for words in COMMANDS:
        assert say(words, tmp_path)[0] == 0
    assert say(("report",), tmp_path)[0] == 0
