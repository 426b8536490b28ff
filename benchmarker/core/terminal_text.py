"""Text of libraries and users, made readable and safe: escape codes, redrawn lines, control characters."""

from __future__ import annotations

import re
import unicodedata

_ESCAPE_CODES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[^\n])?")
"""ECMA-48: control sequences (colours, moves), window titles, and other codes of two letters."""


def without_escape_codes(text: str) -> str:
    return _ESCAPE_CODES.sub("", text)


def lines_of(text: str) -> list[str]:
    """Return the lines as a terminal shows them: without escape codes, and the last state of a redrawn line.

    Lines end as in an editor, so that line numbers in errors agree.
    """
    return [line.rstrip("\r").rpartition("\r")[2] for line in without_escape_codes(text).split("\n")]


def clean(text: str) -> str:
    """Return the text without characters that control a terminal or change its direction; tabs and line ends stay."""
    return "".join(
        letter
        if letter in "\n\t" or unicodedata.category(letter) not in ("Cc", "Cf", "Cs")
        else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )
