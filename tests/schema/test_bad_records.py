"""Edited records: every command that reads records prints one line of error and no traceback."""

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
"""A record to edit and a record to compare it with. Together they have every optional part."""
MISSING = object()
VALUES = {
    "missing": MISSING, "null": None, "negative": -1, "zero": 0, "1e308": 1e308, "1e-308": 1e-308, "huge": 10**400,
    "empty text": "", "text": "x", "list": [], "object": {}, "true": True,
}  # fmt: skip
COMMANDS = (("compare",), ("compare", "--format", "json"), ("explain",), ("explain", "--format", "json"), ("verify",))
SHARE = 12
"""Each field is edited to 1 / SHARE of the values, chosen with a fixed seed. All of them take too long."""
EVERY = 3
"""Stride over the fields."""

KeyPath = tuple[str | int, ...]


def key_paths(parent: Any, key_path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the path of every key below a value; in lists of the first and the last member."""
    if isinstance(parent, dict):
        keys = list(parent)
    else:
        keys = sorted({0, len(parent) - 1}) if isinstance(parent, list) and parent else []
    for key in keys:
        yield (*key_path, key)
        yield from key_paths(parent[key], (*key_path, key))


def edited(path: Path, key_path: KeyPath, value: Any) -> str:
    record = json.loads(path.read_bytes())
    parent = record
    for key in key_path[:-1]:
        parent = parent[key]
    if value is MISSING:
        del parent[key_path[-1]]
    else:
        parent[key_path[-1]] = value
    return json.dumps(record)


def fields(folder: str) -> list[KeyPath]:
    """Return the path of every field once: of the first member in lists, without fields of earlier folders."""
    earlier_paths: dict[KeyPath, KeyPath] = {}
    for name in SOURCES:
        record = json.loads((REFERENCES / name / SOURCES[name][0]).read_bytes())
        record_paths = {
            tuple(0 if isinstance(key, int) else key for key in key_path): key_path for key_path in key_paths(record)
        }
        if name == folder:
            return [key_path for field, key_path in record_paths.items() if field not in earlier_paths]
        earlier_paths |= record_paths
    raise AssertionError(folder)


def run_command(arguments: tuple[str, ...], *paths: Path) -> tuple[int, str]:
    """Run a command and check that an error is one line; `typed` raises any other exception."""
    code, printed = typed(*arguments, *paths)
    assert code in (0, 1, 2)
    if code == 2:
        assert printed.startswith("error: ")
        assert printed.count("\n") == 1
    return code, printed


@pytest.mark.parametrize("folder", SOURCES)
def test_edited_fields_cause_no_traceback(tmp_path, folder):
    generator = random.Random(7)
    name, neighbour = SOURCES[folder]
    shutil.copy(REFERENCES / folder / neighbour, tmp_path / neighbour)
    for number, key_path in enumerate(fields(folder)[::EVERY]):
        for description in generator.sample(sorted(VALUES), len(VALUES) // SHARE):
            (tmp_path / name).write_text(edited(REFERENCES / folder / name, key_path, VALUES[description]))
            try:
                run_command(COMMANDS[number % len(COMMANDS)], tmp_path)
            except Exception as error:
                command = " ".join(COMMANDS[number % len(COMMANDS)])
                raise AssertionError(f"{key_path} {description}: {command}") from error


def test_impossible_latency_is_reported_with_file_and_field(tmp_path):
    name, neighbour = SOURCES["quickstart"]
    path = tmp_path / name
    path.write_text(edited(REFERENCES / "quickstart" / name, ("cells", 0, "samples", 0, "latency_s"), 1e308))
    line = f"{path}: cells[0].samples[0].latency_s: input should be less than or equal to 1000000000, not 1e+308"
    for arguments in (*COMMANDS, ("report",)):
        code, printed = run_command(arguments, path)
        assert code == 2
        assert line in printed
    shutil.copy(REFERENCES / "quickstart" / neighbour, tmp_path / neighbour)
    code, printed = run_command(("verify",), tmp_path)
    assert (code, printed.splitlines()[0]) == (1, f"cannot be read: {line}")


def test_verify_reads_huge_run_counts_and_cells_without_memory(tmp_path):
    name, _ = SOURCES["quickstart"]
    for key_path, value, code in ((("procedure", "runs"), 10**400, 1), (("cells", 0, "memory"), MISSING, 0)):
        (tmp_path / name).write_text(edited(REFERENCES / "quickstart" / name, key_path, value))
        assert run_command(("verify",), tmp_path)[0] == code


def test_record_without_setup_time_is_accepted_by_every_command(tmp_path):
    name, _ = SOURCES["h100-runtimes"]
    (tmp_path / name).write_text(edited(REFERENCES / "h100-runtimes" / name, ("engine", "setup_s"), MISSING))
    for arguments in COMMANDS:
        assert run_command(arguments, tmp_path)[0] == 0
    assert run_command(("report",), tmp_path)[0] == 0
