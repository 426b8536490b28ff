"""The HTML report in a headless browser: requests, console messages, sorting, layout and print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarker.report.compare import compare
from benchmarker.report.html.page import write_report
from tests.browser import Page, find_browser, open_browser
from tests.records import cell, record
from tests.report.test_report import HOSTILE, compared, full_comparison

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
"""Words of the visible tables that are broken over two lines."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Page:
    browser.requests.clear()
    browser.complaints.clear()
    return browser


def open_report(page: Page, folder: Path, comparison: object) -> None:
    path = folder / "report.html"
    write_report(comparison, path)
    page.open(path)


def test_report_opens_from_disk_without_requests(page, tmp_path):
    open_report(page, tmp_path, full_comparison(tmp_path))
    assert page.requests == [(tmp_path / "report.html").as_uri()]
    assert page.complaints == []


def test_clicks_on_a_heading_sort_and_reverse(page, tmp_path):
    slow, fast = cell([3.0]), cell([1.0])
    open_report(
        page, tmp_path, compared(tmp_path, record("fp16", slow), record("int8", fast), record("bnb4", cell([2.0])))
    )
    click = "[...document.querySelectorAll('th button')].find(one => one.textContent === '{}').click()".format
    assert page.value(COLUMN) == ["int8", "bnb4", "fp16"]
    page.value(click("variant"))
    assert page.value(COLUMN) == ["bnb4", "fp16", "int8"]
    page.value(click("decode tok/s"))
    assert page.value(COLUMN) == ["int8", "bnb4", "fp16"]
    page.value(click("decode tok/s"))
    assert page.value(COLUMN) == ["fp16", "bnb4", "int8"]
    assert page.complaints == []


def test_hostile_name_runs_no_script(page, tmp_path):
    open_report(page, tmp_path, full_comparison(tmp_path, HOSTILE))
    assert page.requests == [(tmp_path / "report.html").as_uri()]
    assert page.complaints == []
    assert page.value("document.scripts.length") == 1
    assert "<script>alert(1)</script>" in page.value("document.body.innerText")


def test_report_fits_the_width_of_a_phone(page, tmp_path):
    open_report(page, tmp_path, full_comparison(tmp_path))
    page.look(width=390)
    assert page.value("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize("width", [400, 1280])
def test_answer_is_at_the_top_and_breaks_no_word(page, tmp_path, width):
    open_report(page, tmp_path, compare([ROOT / "results/reference/h100-runtimes-2"]))
    page.look(width=width)
    assert page.value("document.documentElement.scrollWidth") == width
    assert page.value("document.querySelector('.answer').getBoundingClientRect().bottom") < 900
    assert page.value(BROKEN_WORDS) == []


def test_print_shows_wide_tables_and_folded_details(page, tmp_path):
    open_report(page, tmp_path, compare([ROOT / "results/reference/quickstart"]))
    page.look(width=A4_LANDSCAPE, media="print")
    assert page.value("document.documentElement.scrollWidth") == A4_LANDSCAPE
    open_report(page, tmp_path / "more", full_comparison(tmp_path / "more"))
    height = "document.querySelector('details table').getBoundingClientRect().height"
    assert page.value(height) > 0
    page.look(width=A4_LANDSCAPE)
    assert page.value("document.querySelector('details table').checkVisibility()") is False


def test_background_is_dark_on_request_and_white_in_print(page, tmp_path):
    open_report(page, tmp_path, full_comparison(tmp_path))
    colour = "getComputedStyle(document.body).backgroundColor"
    page.look(width=1000, dark=True)
    assert page.value(colour) == "rgb(21, 24, 28)"
    page.look(width=1000, dark=True, media="print")
    assert page.value(colour) == "rgb(255, 255, 255)"
