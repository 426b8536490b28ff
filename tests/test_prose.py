"""Limits of the counts of `script/prose.py` on docstrings, comments and hand-written pages."""

import ast
import re
from pathlib import Path

import pytest

from script.prose import ROOT, Counts, comments, count_markdown, count_python, docstrings, is_fragment

GOAL = (2.0, 2.0, 0.5, 3.0, 15.0)
"""Limits of a folder that is not in `MAXIMUM`."""
MAXIMUM = {"schema": (2.0, 2.0, 0.5, 3.0, 16.0), "tests": (2.0, 2.0, 2.0, 3.0, 15.0)}
"""Limits by folder. Tests quote messages, which contain some of these words.

Per 1,000 words: "what", "where", forms of say/tell/ask/know/want. In percent: fragments among the pieces, docstring
lines among the non-blank lines.
"""
FOLDERS = [*sorted(path.parent for path in ROOT.glob("benchmarker/*/__init__.py")), ROOT / "tests", ROOT / "script"]

MAXIMUM_OF_PAGES = (2.0, 2.0, 3.0)
"""Limits of hand-written pages per 1,000 words: "what", "where", forms of say/tell/ask/know/want."""
GENERATED = {"record.md", "options.md", "config.md", "explained.md"}
MAXIMAL_WORDS = {"docs": 14_000, "README.md": 1_100, "CHANGELOG.md": 700}
"""Words of hand-written pages, their tables and code included, generated tables not."""
MAXIMAL_WORDS_OF_A_RECORD = 200
"""Words with a letter or a digit in the hand-written part of a record's README."""


def excess(counts: Counts, limits: tuple[float, ...]) -> dict[str, float]:
    """Return the measures that exceed their limit."""
    values = {
        "what": counts.per_1000(counts.what),
        "where": counts.per_1000(counts.where),
        "say/tell/ask/know/want": counts.per_1000(counts.speech),
        "fragments %": 100 * counts.fragment_share,
        "docstrings %": 100 * counts.docstring_share,
    }
    return {name: value for (name, value), limit in zip(values.items(), limits, strict=False) if value > limit}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_docstrings_and_comments_are_within_their_limits(folder):
    counts = count_python(sorted(folder.rglob("*.py")))
    assert not excess(counts, MAXIMUM.get(folder.name, GOAL))


def pages(name: str) -> list[Path]:
    """Return the hand-written pages of a folder, or the one page."""
    path = ROOT / name
    return [page for page in sorted(path.rglob("*.md")) if page.name not in GENERATED] if path.is_dir() else [path]


def hand_written(page: Path) -> str:
    """Return the text of a page without generated tables."""
    text = page.read_text(encoding="utf-8")
    if "results" in page.parts:
        return re.split(r"\n\nThe tables[^\n]*, as `benchmarker compare|\n\n- (?:model|workload): ", text)[0]
    return re.sub(r"(<!-- [^\n]* by script/\w+\.py -->\n)(?:\|[^\n]*\n)+", r"\1", text)


@pytest.mark.parametrize(
    "name", ["docs", "README.md", "CHANGELOG.md", "results", "benchmarker/text", "benchmarker/models"]
)
def test_hand_written_pages_are_within_their_limits(name, tmp_path):
    copies = []
    for number, page in enumerate(pages(name)):
        copies.append(tmp_path / f"{number}.md")
        copies[-1].write_text(hand_written(page), encoding="utf-8")
    assert not excess(count_markdown(copies), MAXIMUM_OF_PAGES)


@pytest.mark.parametrize("name", sorted(MAXIMAL_WORDS))
def test_pages_are_short(name):
    assert sum(len(hand_written(page).split()) for page in pages(name)) <= MAXIMAL_WORDS[name]


def test_descriptions_of_records_are_short():
    words = {page.parent.name: len(re.findall(r"\S*\w\S*", hand_written(page))) for page in pages("results")}
    assert not {name: count for name, count in words.items() if count > MAXIMAL_WORDS_OF_A_RECORD}


@pytest.mark.parametrize(
    ("piece", "fragment"),
    [
        ("Return the median.", False),
        ("The median of the rounds.", False),
        ("Of the rounds, the median.", True),
        ("The same of the rounds.", True),
        ("Whether it runs.", True),
        ("`None` without rounds.", False),
    ],
)
def test_fragments_have_no_head_noun_or_verb(piece, fragment):
    assert is_fragment(piece) is fragment


def test_documentation_of_fields_counts_as_docstrings():
    source = 'class Row:\n    """Row of a table."""\n\n    name: str\n    """Name of the variant."""\n'
    assert [piece.value for piece in docstrings(ast.parse(source))] == ["Row of a table.", "Name of the variant."]


def test_consecutive_comment_lines_are_one_piece():
    assert list(comments("x = 1  # One.\ny = 2\n# Two\n# three.\n")) == ["One.", "Two three."]


def test_code_in_a_page_is_not_counted(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# What\n\n| what |\n\nRun `what` where needed.\n\n```\nwhat\n```\n")
    counts = count_markdown([page])
    assert (counts.what, counts.where, counts.words) == (0, 1, 4)
