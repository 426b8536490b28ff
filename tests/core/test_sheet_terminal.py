"""Tables in a terminal: wrapping, splitting, and escaping of names in terminal, markdown and HTML."""

from __future__ import annotations

import io
from html import escape
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from benchmarker.core.tables import Block, Column, Sheet, bold, code, plain_line, rich_text, show_blocks, to_markdown
from benchmarker.report.compare import brief, compare, whole
from benchmarker.report.explanations import explained_blocks
from benchmarker.report.html.page import html, page_templates

REFERENCE = Path(__file__).parents[2] / "results" / "reference"

ROWS = [("fp16", "326.3", "baseline"), ("gptq-compile", "748.1", "1.41x [1.30, 1.53] faster")]
COLUMNS = [
    Column[tuple[str, ...]]("variant", lambda row: row[0], "left"),
    Column[tuple[str, ...]]("decode tok/s", lambda row: row[1]),
    Column[tuple[str, ...]]("speed-up", lambda row: row[2], "left"),
]


def rendered_text(*blocks: Block, width: int = 100) -> str:
    out = io.StringIO()
    show_blocks(Console(file=out, width=500), blocks, width)
    return out.getvalue()


def test_table_that_fits_has_one_line_per_row():
    assert rendered_text(Sheet("Speed", COLUMNS, ROWS, ("Notes are *below*.",))) == (
        """\
Speed
variant       decode tok/s  speed-up
fp16                 326.3  baseline
gptq-compile         748.1  1.41x [1.30, 1.53] faster
Notes are *below*.
"""
    )


def test_narrow_table_wraps_words_but_no_interval():
    assert rendered_text(Sheet("", COLUMNS, ROWS), width=36) == (
        """\
              decode
variant        tok/s  speed-up
fp16           326.3  baseline
gptq-compile   748.1  1.41x
                      [1.30, 1.53]
                      faster
"""
    )


def test_code_is_not_wrapped_and_long_commands_get_a_line():
    kernels = f"- products by {code('kernel_a<half, 1>')}, {code('kernel_b')}"
    assert rendered_text(kernels, width=34) == "- products by `kernel_a<half, 1>`,\n  `kernel_b`\n"
    command = code("benchmarker generate --quant gptq")
    assert rendered_text(f"Run it: {command}", width=30) == "Run it:\n`benchmarker generate --quant gptq`\n"


def test_too_wide_table_is_split_with_the_names_repeated():
    wide = [COLUMNS[0], *(Column[tuple[str, ...]](f"count {number}", lambda row: "123456789") for number in range(3))]
    assert rendered_text(Sheet("", wide, ROWS[:1]), width=30) == (
        """\
variant    count 0    count 1
fp16     123456789  123456789

variant    count 2
fp16     123456789
"""
    )


HOSTILE = ["a|b", "*x*", "`y`", "<b>z</b>", "a\\\\b", "under_ _score", "\ue000bold\ue001"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_name_is_equal_text_in_every_output(name):
    plain = name.replace("\ue000", "").replace("\ue001", "")
    sheet = Sheet("", COLUMNS, [(name, "1", "2")], (f"Relative to {plain_line(name)}, {bold(plain_line(name))}.",))
    assert f"{plain} " in rendered_text(sheet)
    assert f"Relative to {plain}, {plain}." in rendered_text(sheet)
    rendered = MarkdownIt("gfm-like", {"linkify": False}).render(to_markdown([sheet]))
    assert f'<td style="text-align:left">{escape(plain, quote=False)}</td>' in rendered
    assert (
        f"<p>Relative to {escape(plain, quote=False)}, <strong>{escape(plain, quote=False)}</strong>.</p>" in rendered
    )
    page = page_templates().get_template("sheet.html").module.show_sheet(sheet)
    assert f'<td class="left">{escape(plain)}</td>' in page
    assert f">Relative to {escape(plain)}, <strong>{escape(plain)}</strong>.</p>" in page


def test_name_contains_no_control_characters():
    text = rendered_text(Sheet("", COLUMNS, [("\x1b[31m[bold]a|b\u202e", "1", "**x**")]))
    assert text.splitlines()[1] == "[bold]a|b             1  **x**"


def test_bold_and_code_are_rendered_in_every_output():
    line = f"{bold('gptq_')} runs {code('pip install x')}"
    assert rich_text(line).plain == "gptq_ runs `pip install x`"
    assert [(span.start, span.end, span.style) for span in rich_text(line).spans] == [(0, 5, "bold")]
    assert to_markdown([line]) == "**gptq\\_** runs `pip install x`\n"
    assert html(line) == "<strong>gptq_</strong> runs <code>pip install x</code>"


@pytest.mark.parametrize("folder", sorted(path.name for path in REFERENCE.iterdir() if path.is_dir()))
def test_terminal_output_of_references_has_no_backslash(folder):
    comparison = compare(REFERENCE / folder)
    text = rendered_text(*brief(comparison), *whole(comparison), *explained_blocks(comparison))
    assert "\\" not in text


def test_markdown_escapes_names_from_files_only():
    assert to_markdown([Sheet("", COLUMNS, [("a|b", "1", "1.0x [0.9, 1.1]")]), "The end."]) == (
        """\
| variant | decode tok/s | speed-up        |
| :------ | -----------: | :-------------- |
| a\\|b    |            1 | 1.0x [0.9, 1.1] |

The end.
"""
    )
