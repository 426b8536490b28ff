"""Tables in a terminal: no wider than the room, no number cut, names that do nothing."""

from __future__ import annotations

import io

from rich.console import Console

from benchmarker.core.sheet_terminal import plain, show_blocks
from benchmarker.core.tables import Block, Column, Sheet, to_markdown

ROWS = [("fp16", "326.3", "baseline"), ("gptq-compile", "748.1", "1.41x [1.30, 1.53] faster")]
COLUMNS = [
    Column[tuple[str, ...]]("variant", lambda row: row[0], "left", is_foreign=True),
    Column[tuple[str, ...]]("decode tok/s", lambda row: row[1]),
    Column[tuple[str, ...]]("speed-up", lambda row: row[2], "left"),
]


def shown(*blocks: Block, width: int = 100) -> str:
    out = io.StringIO()
    show_blocks(Console(file=out, width=500), blocks, width)
    return out.getvalue()


def test_a_table_that_fits_has_a_line_a_row():
    assert shown(Sheet("Speed", COLUMNS, ROWS, ("Notes are *below*.",))) == (
        """\
Speed
variant       decode tok/s  speed-up
fp16                 326.3  baseline
gptq-compile         748.1  1.41x [1.30, 1.53] faster
Notes are *below*.
"""
    )


def test_words_break_where_there_is_no_room_and_an_interval_stays_whole():
    assert shown(Sheet("", COLUMNS, ROWS), width=36) == (
        """\
               decode
variant         tok/s  speed-up
fp16            326.3  baseline
gptq-compile    748.1  1.41x
                       [1.30, 1.53]
                       faster
"""
    )


def test_a_table_that_is_too_wide_becomes_two_with_the_names_in_both():
    wide = [COLUMNS[0], *(Column[tuple[str, ...]](f"count {at}", lambda row: "123456789") for at in range(3))]
    assert shown(Sheet("", wide, ROWS[:1]), width=30) == (
        """\
variant    count 0    count 1
fp16     123456789  123456789

variant    count 2
fp16     123456789
"""
    )


def test_a_name_steers_no_terminal_and_is_no_markup():
    text = shown(Sheet("", COLUMNS, [("\x1b[31m[bold]a|b\u202e", "1", "**x**")]))
    assert text.splitlines()[1] == "[bold]a|b             1  **x**"


def test_a_paragraph_keeps_its_bold_and_loses_its_escapes():
    line = plain(r"**gptq\_** is \*fast\*")
    assert line.plain == "gptq_ is *fast*"
    assert [(span.start, span.end, span.style) for span in line.spans] == [(0, 5, "bold")]


def test_markdown_escapes_what_came_from_a_file_and_nothing_else():
    assert to_markdown([Sheet("", COLUMNS, [("a|b", "1", "1.0x [0.9, 1.1]")]), "The end."]) == (
        """\
| variant | decode tok/s | speed-up        |
| :------ | -----------: | :-------------- |
| a\\|b    |            1 | 1.0x [0.9, 1.1] |

The end.
"""
    )
