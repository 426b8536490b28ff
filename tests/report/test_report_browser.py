"""The page in a real browser: it asks for nothing, complains of nothing, sorts, and obeys no name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarker.report.compare import compare
from benchmarker.report.html.page import write_report
from tests.browser import Page, find_browser, open_browser
from tests.records import cell, record
from tests.report.test_report import HOSTILE, compared, everything

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_browser() is None, reason="there is no Chromium on the PATH"),
]
ROOT = Path(__file__).parents[2]
A4_LANDSCAPE = 1032
"""CSS pixels between the margins."""
COLUMN = "[...document.querySelectorAll('table.sortable')[0].tBodies[0].rows].map(row => row.cells[0].textContent)"

BROKEN_WORDS = """[...document.querySelectorAll('.wide td')]
    .filter(cell => cell.checkVisibility()).flatMap(cell => {
        const node = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT).nextNode();
        return node ? [...node.data.matchAll(/\\S+/g)].filter(word => {
            const range = document.createRange();
            range.setStart(node, word.index);
            range.setEnd(node, word.index + word[0].length);
            return new Set([...range.getClientRects()].map(box => box.top)).size > 1;
        }).map(word => word[0]) : [];
    })"""
"""Words of the visible tables that go on in another line."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Page:
    browser.requests.clear()
    browser.complaints.clear()
    return browser


def shown(page: Page, folder: Path, comparison: object) -> None:
    path = folder / "report.html"
    write_report(comparison, path)
    page.open(path)


def test_it_opens_from_disk_and_asks_for_nothing_else(page, tmp_path):
    shown(page, tmp_path, everything(tmp_path))
    assert page.requests == [(tmp_path / "report.html").as_uri()]
    assert page.complaints == []


def test_a_click_on_a_heading_sorts_and_a_second_one_turns_it_around(page, tmp_path):
    slow, fast = cell([3.0]), cell([1.0])
    shown(page, tmp_path, compared(tmp_path, record("fp16", slow), record("int8", fast), record("bnb4", cell([2.0]))))
    click = "[...document.querySelectorAll('th button')].find(one => one.textContent === '{}').click()".format
    assert page.value(COLUMN) == ["int8", "bnb4", "fp16"]
    page.value(click("variant"))
    assert page.value(COLUMN) == ["bnb4", "fp16", "int8"]
    page.value(click("decode tok/s"))
    assert page.value(COLUMN) == ["int8", "bnb4", "fp16"]
    page.value(click("decode tok/s"))
    assert page.value(COLUMN) == ["fp16", "bnb4", "int8"]
    assert page.complaints == []


def test_a_hostile_name_does_nothing(page, tmp_path):
    shown(page, tmp_path, everything(tmp_path, HOSTILE))
    assert page.requests == [(tmp_path / "report.html").as_uri()]
    assert page.complaints == []
    assert page.value("document.scripts.length") == 1
    assert "<script>alert(1)</script>" in page.value("document.body.innerText")


def test_nothing_but_a_table_is_wider_than_a_phone(page, tmp_path):
    shown(page, tmp_path, everything(tmp_path))
    page.look(width=390)
    assert page.value("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize("width", [400, 1280])
def test_the_answer_comes_first_and_no_word_of_its_table_is_broken(page, tmp_path, width):
    shown(page, tmp_path, compare([ROOT / "results/reference/h100-runtimes-2"]))
    page.look(width=width)
    assert page.value("document.documentElement.scrollWidth") == width
    assert page.value("document.querySelector('.answer').getBoundingClientRect().bottom") < 900
    assert page.value(BROKEN_WORDS) == []


def test_print_shows_all_of_a_wide_table_and_what_is_folded_away(page, tmp_path):
    shown(page, tmp_path, compare([ROOT / "results/reference/quickstart"]))
    page.look(width=A4_LANDSCAPE, media="print")
    assert page.value("document.documentElement.scrollWidth") == A4_LANDSCAPE
    shown(page, tmp_path / "more", everything(tmp_path / "more"))
    height = "document.querySelector('details table').getBoundingClientRect().height"
    assert page.value(height) > 0
    page.look(width=A4_LANDSCAPE)
    assert page.value("document.querySelector('details table').checkVisibility()") is False


def test_paper_follows_the_reader_into_the_dark_and_stays_white_in_print(page, tmp_path):
    shown(page, tmp_path, everything(tmp_path))
    colour = "getComputedStyle(document.body).backgroundColor"
    page.look(width=1000, dark=True)
    assert page.value(colour) == "rgb(21, 24, 28)"
    page.look(width=1000, dark=True, media="print")
    assert page.value(colour) == "rgb(255, 255, 255)"
