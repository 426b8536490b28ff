"""Escaping of names in markdown tables, and percentages."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from benchmarker.core.formatting import percent
from benchmarker.core.tables import Column, markdown, plain_line, table
from benchmarker.report.compare import compare, to_markdown
from tests.records import environment, failed_cell, failed_record, record, save

HOSTILE = [
    "a|b",
    "line\nbreak\r\nand more",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07",
    "<script>alert(1)</script>",
    "<img src=x onerror=y>",
    "`code` **bold** _em_ ~~gone~~",
    "[click](https://example.org) ![x](y)",
    "&lt;b&gt; &amp;",
    "\u202egnihtemos\u2066\u200b",
    "back\\slash\\|pipe",
    "../../etc/passwd",
    "$x$",
    "x" * 300,
    "量化 🚀",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_name_is_one_text_cell(name):
    columns = [Column[str]("variant", lambda name: name, "left"), Column[str]("tok/s", lambda _: "1")]
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(table(columns, [name]))
    cells = [token for token in tokens if token.type == "inline"]
    assert len(cells) == 4  # two headings, two cells
    assert {child.type for child in cells[2].children} <= {"text", "text_special"}
    assert "".join(child.content for child in cells[2].children) == plain_line(name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gptq exllama_v2", "gptq exllama_v2"),  # nothing to escape inside a word
        ("a|b", "a\\|b"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("two\nlines", "two lines"),
        ("\u202eright to left", "right to left"),
        ("x" * 81, "x" * 79 + "…"),
    ],
)
def test_names_are_escaped_only_if_necessary(name, text):
    assert markdown(plain_line(name)) == text


def test_columns_are_aligned_with_wide_characters():
    lines = table([Column[str]("name", lambda name: name, "left")], ["量化", "int8"]).splitlines()
    assert lines == ["| name |", "| :--- |", "| 量化 |", "| int8 |"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_record_has_a_table_with_equal_rows(tmp_path, name):
    hostile = record(
        "int8",
        failed_cell("error", name),
        name=name[:80],
        model={"id": name},
        environment=environment(device={"name": name}, packages={"torch": name}),
    )
    text = to_markdown(compare([save(tmp_path, hostile, failed_record("fp16", name))], force=True))
    assert len({line.count(" | ") for line in text.splitlines() if line.startswith("| ")}) == 1
    assert not any(letter in text for letter in "\x1b\x07\r\u202e\u2066\u200b")
    html = MarkdownIt("gfm-like", {"linkify": False}).render(text)
    assert not any(tag in html for tag in ("<script", "<img", "<a ", "<em>", "<s>", "<del>"))


@pytest.mark.parametrize(
    ("share", "places", "text"),
    [
        (0.893, None, "89 %"),
        (0.0893, None, "8.9 %"),
        (0.0996, None, "10 %"),
        (0, None, "0 %"),
        (-0.031, None, "-3.1 %"),
        (0.01, 0, "1 %"),
        (0.893, 1, "89.3 %"),
    ],
)
def test_percentages_have_two_digits_by_default(share, places, text):
    assert percent(share, places=places) == text
