"""Escape codes and redrawn lines in output of other programs."""

from __future__ import annotations

import pytest

from benchmarker.core.tables import lines_of, without_escape_codes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]0;title\x1b\\text", "text"),
        ("\x1b7saved", "saved"),
        ("cut\x1b", "cut"),
        ("two\x1b\nlines", "two\nlines"),
    ],
)
def test_escape_codes_are_removed_and_line_breaks_kept(text: str, expected: str) -> None:
    assert without_escape_codes(text) == expected


def test_redrawn_line_has_its_last_state() -> None:
    assert lines_of("loading  10 %\rloading 100 %\r\n\x1b[32mdone\x1b[0m\n") == ["loading 100 %", "done", ""]
