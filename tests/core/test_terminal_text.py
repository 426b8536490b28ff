"""Escape codes and redrawn lines in text that something else wrote."""

from __future__ import annotations

import pytest

from benchmarker.core.tables import lines_of, without_escape_codes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]0;title\x1b\\text", "text"),
        ("\x1b7saved", "saved"),
        ("cut\x1b", "cut"),
        ("two\x1b\nlines", "two\nlines"),
    ],
)
def test_escape_codes_go_and_lines_stay_lines(text: str, words: str) -> None:
    assert without_escape_codes(text) == words


def test_of_a_redrawn_line_the_last_state_is_shown() -> None:
    assert lines_of("loading  10 %\rloading 100 %\r\n\x1b[32mdone\x1b[0m\n") == ["loading 100 %", "done", ""]
