"""Text of a saved log, in the encodings that terminals and shells write."""

from __future__ import annotations

import codecs
from pathlib import Path

from benchmarker.core.errors import ResultsError, read_problem

# `>` in Windows PowerShell writes UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def read_log(path: Path) -> str:
    """Read the text of a log, in UTF-8, or in UTF-16 with a byte-order mark. Raises ResultsError."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ResultsError(read_problem(path, error)) from error
    if not raw.strip():
        raise ResultsError(f"{path}: the file is empty; give the log of a run")
    encoding = next((name for mark, name in _MARKS if raw.startswith(mark)), "utf-8")
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ResultsError(
            f"{path}: line {line}: not {encoding.upper()} text; convert it, as with `iconv -f GB18030 -t UTF-8`"
        ) from error
    if "\0" in text:
        raise ResultsError(f"{path}: not a text file; give the log of a run, as UTF-8 text")
    return text
