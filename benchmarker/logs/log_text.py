"""Text of a saved log, in the encodings that terminals and shells write."""

from __future__ import annotations

import codecs
from pathlib import Path

from benchmarker.core.errors import ResultsError, read_problem

# `>` in Windows PowerShell writes UTF-16.
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_log(path: Path) -> str:
    """Read the text of a log, in UTF-8, or in UTF-16 with a byte-order mark. Raises ResultsError."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ResultsError(read_problem(path, error)) from error
    if not raw.strip():
        raise ResultsError(f"{path}: the file is empty; give the log of a run")
    encoding = "utf-16" if raw.startswith(_UTF_16) else "utf-8"
    try:
        text = raw.removeprefix(codecs.BOM_UTF8).decode(encoding)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ResultsError(
            f"{path}: line {line}: not {encoding.upper()} text; convert it, as with `iconv -f GB18030 -t UTF-8`"
        ) from error
    if "\0" in text:
        raise ResultsError(f"{path}: not a text file; give the log of a run, as UTF-8 text")
    return text
