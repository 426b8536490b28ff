"""The report: one HTML file that asks nothing of the network and holds all that the tables do, with pictures.

Every number comes through the same columns and rows as `benchmarker compare` prints. Names come from files that
somebody else may have written: markdown's own escapes keep them inert in the text, jinja2 escapes what is plain, and a
content policy forbids every script but the page's own, and every request.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from benchmarker import __version__
from benchmarker.comparison.ranking import ranking_of
from benchmarker.comparison.rows import Row, headline_rows
from benchmarker.core.formatting import plural
from benchmarker.core.tables import plain_line
from benchmarker.profiling.profile_table import profile_table
from benchmarker.report.answer import answer
from benchmarker.report.charts.kernels import profile_of
from benchmarker.report.charts.style import DARK, LIGHT, NAMES, Chart, Ink, to_svg
from benchmarker.report.first_table import first_table
from benchmarker.report.html.sentences import paragraphs, sentence
from benchmarker.report.html.sheet import sortable
from benchmarker.report.html.surroundings import surroundings
from benchmarker.report.sheets import forced, left_out, sheets, where
from benchmarker.schema.registry import workload_of

if TYPE_CHECKING:
    from benchmarker.report.compare import Comparison


@dataclass(frozen=True)
class Picture:
    """One chart, drawn."""

    name: str
    title: str
    note: str
    svg: Markup


RANDOM_WEIGHTS = "Random weights: time and memory are real, text and quality are not"
"""Badge of a page whose records have random weights."""


def to_html(results: Comparison, charts: Sequence[Chart]) -> str:
    """The whole page.

    Args:
        charts: From `page.charts.all.charts_of`.
    """
    pages = Environment(
        loader=PackageLoader("benchmarker.report.html", "parts"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    script = _part("page.js")
    workload, chosen = workload_of(results.workload), headline_rows(results.rows)
    ranking = ranking_of(results)
    limits = workload.limit_sheet(workload.limit_rows(results.rows))
    return pages.get_template("page.html").render(
        title=workload.page_title(results),
        policy=_policy(script),
        style=Markup(_style()),
        script=Markup(script),
        show_sheet=pages.get_template("sheet.html").module.show_sheet,  # type: ignore[attr-defined]
        badge=RANDOM_WEIGHTS if workload.has_random_weights(results.rows) else "",
        answer=[sentence(line) for line in answer(results, ranking)],
        forced=[sentence(line) for line in forced(results)],
        where=sentence(where(results)),
        facts=[sentence(line) for line in workload.header(results.records)],
        first=sortable(first_table(ranking)),
        sheets=[sortable(sheet) for sheet in (*sheets(results), *([limits] if limits else []))],
        caption=sentence(workload.caption(results)),
        batches=[sentence(line) for line in workload.remarks(results.rows, results.baseline)],
        reasons=[sentence(reason) for reason in results.reasons],
        caveats=[sentence(line) for line in _caveats(results, chosen)],
        pictures=[Picture(chart.name, chart.title, chart.note, Markup(to_svg(chart))) for chart in charts],
        profiles=_profiles(results),
        environment=surroundings(results.records),
        commands=_commands(results),
        footer=f"benchmarker {__version__}, from {plural(len(results.records), 'record', 'records')}. "
        "The values are those of benchmarker compare.",
    )


def _part(name: str) -> str:
    return (Path(__file__).parent / "parts" / name).read_text(encoding="utf-8")


def _style() -> str:
    return _part("page.css").replace("{{ light }}", _variables(LIGHT)).replace("{{ dark }}", _variables(DARK))


def _variables(ink: Ink) -> str:
    colours = (ink.text, ink.faint, ink.paper, *ink.series, *ink.parts)
    return "; ".join(f"--{name}: {colour}" for name, colour in zip(NAMES, colours, strict=True))


def _policy(script: str) -> str:
    """Nothing is loaded from anywhere, and no script runs but this one."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"


def _caveats(results: Comparison, chosen: Sequence[Row]) -> list[str]:
    workload = workload_of(results.workload)
    closing = workload.closing(chosen, results.baseline)
    return [*workload.caveats(results.records, results.rows), *closing, *left_out(results)]


def _profiles(results: Comparison) -> list[tuple[str, Markup]]:
    words = workload_of(results.workload).profile_text
    profiles = ((name, profile_of(records)) for name, records in results.members.items())
    return [
        (plain_line(name), paragraphs(profile_table(profile, what=words(profile))))
        for name, profile in profiles
        if profile
    ]


def _commands(results: Comparison) -> list[tuple[str, str]]:
    return [
        (plain_line(name), plain_line(records[0].reproduce, longest=1000)) for name, records in results.members.items()
    ]
