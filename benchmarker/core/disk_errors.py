"""Errors of reading from a disk and writing to it in words, with what to do about them."""

from __future__ import annotations

import errno
from pathlib import Path

_PROBLEMS = {
    errno.ENOSPC: "the disk is full; make room or {elsewhere}",
    errno.EDQUOT: "the disk quota is used up; make room or {elsewhere}",
    errno.EFBIG: "the limit on file size (ulimit -f) is too low; raise it or {elsewhere}",
    errno.EACCES: "no permission to write there; {elsewhere}",
    errno.EROFS: "the file system is read-only; {elsewhere}",
    errno.EEXIST: "part of the path is a file, not a folder; {elsewhere}",
    errno.ENOTDIR: "part of the path is a file, not a folder; {elsewhere}",
}


def why_not_written(error: OSError, *, elsewhere: str) -> str:
    """Why nothing could be written and what to do, as the end of a sentence.

    Args:
        elsewhere: How a user chooses another place, such as `choose another folder with --output`.
    """
    problem = _PROBLEMS.get(error.errno or 0)
    return problem.format(elsewhere=elsewhere) if problem else f"{error.strerror or error}; {elsewhere}"


def why_not_read(path: Path | str, error: OSError) -> str:
    """`text.txt: cannot be read: Permission denied`.

    Args:
        path: The file, with the option before it where one named it: `--eval-text text.txt`.
    """
    return f"{path}: cannot be read: {error.strerror or error}"
