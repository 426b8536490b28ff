"""A temporary file in memory's clothes: room for what does not fit beside a model.

2,048 distributions over a vocabulary of 151,936 take 1.2 GiB in float32. They go to a memory-mapped file that has no
name from its first moment on, so that it is gone when the process is, however that ends. Its room is taken at once: a
full disk is an error here, where it would later be a bus error.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarker.core.errors import QualityError
from benchmarker.core.formatting import gib

Bytes = NDArray[np.uint8]


def check_room(file_bytes: int) -> None:
    """Refuse early what will not fit.

    Raises:
        QualityError: The folder for temporary files has less room than that.
    """
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < file_bytes:
        raise QualityError(_no_room(file_bytes, f"{gib(free)} are free"))


@contextmanager
def scratch_file(rows: int, row_bytes: int) -> Iterator[Bytes]:
    """Bytes to write to and read from, [rows, row_bytes]; gone at the end.

    Raises:
        QualityError: There is no room for it.
    """
    try:
        with tempfile.TemporaryFile() as file:
            _take_room(file.fileno(), rows * row_bytes)
            mapped: Any = np.memmap(file, dtype=np.uint8, shape=(rows, row_bytes))
            try:
                yield mapped
            finally:
                del mapped
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise QualityError(_no_room(rows * row_bytes, os.strerror(error.errno).lower())) from error


def _take_room(handle: int, file_bytes: int) -> None:
    """Have the file system set the blocks aside."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, file_bytes)
    else:
        check_room(file_bytes)
        os.ftruncate(handle, file_bytes)


def _no_room(file_bytes: int, why: str) -> str:
    return (
        f"--quality: no room in {tempfile.gettempdir()} for {gib(file_bytes)} of distributions ({why}); "
        "set TMPDIR to a folder with room, or keep less with --quality-topk 100"
    )
