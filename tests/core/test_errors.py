"""Messages of write errors and of missing extras."""

from __future__ import annotations

import errno

import pytest

from benchmarker.core import errors
from benchmarker.core.errors import write_problem


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left"), "the disk is full; make room or choose another folder"),
        (
            OSError(errno.EFBIG, "File too large"),
            "the limit on file size (ulimit -f) is too low; raise it or choose another folder",
        ),
        (PermissionError(errno.EACCES, "Permission denied"), "no permission to write there; choose another folder"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error; choose another folder"),
        (OSError("without a number"), "without a number; choose another folder"),
    ],
)
def test_write_error_has_a_remedy(error: OSError, message: str) -> None:
    assert write_problem(error, remedy="choose another folder") == message


def test_install_hint_of_a_wheel_lists_requirements(tmp_path, monkeypatch):
    assert errors.install_hint("int8") == "pip install -e '.[int8]' in benchmarker's folder"
    monkeypatch.setattr(errors, "CHECKOUT", tmp_path)
    lines = ["torchao>=0.18; extra == 'int8'", 'torchao>=0.18; extra == "int8-dynamic"', "torch>=2.11"]
    monkeypatch.setattr(errors.metadata, "requires", lambda name: lines)
    assert errors.install_hint("int8") == "pip install 'torchao>=0.18'"
