"""What a user reads where something could not be written."""

from __future__ import annotations

import errno

import pytest

from benchmarker.core.disk_errors import why_not_written


@pytest.mark.parametrize(
    ("error", "words"),
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
def test_an_error_of_the_disk_says_what_to_do(error: OSError, words: str) -> None:
    assert why_not_written(error, elsewhere="choose another folder") == words
