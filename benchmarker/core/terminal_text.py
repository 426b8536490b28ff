"""Text that a library or a user wrote, made readable and safe: escape codes, redrawn lines, letters that steer."""

from __future__ import annotations

import re
import unicodedata

_ESCAPE_CODES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[^\n])?")
"""ECMA-48: control sequences (colours, moves), a window's title, and any other code of two letters."""


def without_escape_codes(text: str) -> str:
    """The text without a terminal's escape codes; lines stay lines."""
    return _ESCAPE_CODES.sub("", text)


def lines_of(text: str) -> list[str]:
    """The lines as a terminal would show them: no escape codes, and of a redrawn line (a progress bar) the last state.

    Lines are told apart as an editor tells them apart, so that a line number in an error is the one that is seen there.
    """
    return [line.rstrip("\r").rpartition("\r")[2] for line in without_escape_codes(text).split("\n")]


def clean(text: str) -> str:
    """Text without what could steer a terminal or turn its direction around; tabs and line ends stay."""
    return "".join(
        letter
        if letter in "\n\t" or unicodedata.category(letter) not in ("Cc", "Cf", "Cs")
        else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )
