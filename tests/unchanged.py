"""Golden files.

After an intended change of outputs, update the files and review their diff: UPDATE_UNCHANGED=1 python -m pytest -n 0
tests/cli/test_unchanged.py tests/cli/test_surface.py
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection
from pathlib import Path


def is_update() -> bool:
    return os.environ.get("UPDATE_UNCHANGED") == "1"


def check_golden(path: Path, after: str) -> None:
    """Fail with a diff if the text differs from the golden file."""
    if is_update():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(after)
    before = path.read_text()
    difference = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="", n=1)
    assert before == after, "\n".join(difference)


def check_golden_files(folder: Path, names: Collection[str]) -> None:
    """Fail if the folder contains a golden file that no test uses."""
    files = {path.name: path for path in folder.iterdir()}
    if is_update():
        for name in files.keys() - set(names):
            files.pop(name).unlink()
    assert set(files) == set(names)
