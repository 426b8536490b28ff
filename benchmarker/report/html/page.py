"""The HTML page: one file without requests, with all tables and charts.

Every number comes through the columns and rows of `benchmarker compare`. Names come from files that someone else may
have written: `html` and jinja2 escape every text, and a content policy forbids every request and every script but the
page's own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from benchmarker import __version__
from benchmarker.comparison.ranking import ranking_of
from benchmarker.core.formatting import abridged, gib, plural
from benchmarker.core.tables import Column, Sheet, cell, plain_line, spans
from benchmarker.profiling.profile_table import profile_table
from benchmarker.report.answer import answer
from benchmarker.report.captions import caption, page_title
from benchmarker.report.charts.stacked import profile_of
from benchmarker.report.charts.style import DARK, LIGHT, NAMES, Chart, Ink, to_svg
from benchmarker.report.compare import forced, left_out, sheets, where
from benchmarker.report.first_table import first_table
from benchmarker.schema.record import Environment as MachineFacts
from benchmarker.schema.record import RunRecord
from benchmarker.schema.registry import workload_of

if TYPE_CHECKING:
    from benchmarker.report.compare import Comparison


@dataclass(frozen=True)
class Picture:
    """One drawn chart."""

    name: str
    title: str
    note: str
    svg: Markup


RANDOM_WEIGHTS = (
    "Random weights: time and memory are those of normally distributed weights; text and quality mean nothing"
)
"""Badge of a page whose records have random weights."""


def to_html(results: Comparison, charts: Sequence[Chart]) -> str:
    """Render the page.

    Args:
        charts: Charts from `report.charts.all.charts_of`.
    """
    pages = Environment(
        loader=PackageLoader("benchmarker.report.html", "parts"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    script = _part("page.js")
    workload = workload_of(results.workload)
    ranking = ranking_of(results)
    limits = workload.limit_sheet(results.rows, whole=True)
    return pages.get_template("page.html").render(
        title=page_title(results),
        policy=_policy(script),
        style=Markup(_style()),
        script=Markup(script),
        show_sheet=pages.get_template("sheet.html").module.show_sheet,  # type: ignore[attr-defined]
        badge=RANDOM_WEIGHTS if any(row.has_random_weights for row in results.rows) else "",
        answer=[html(line) for line in answer(results, ranking)],
        forced=[html(line) for line in forced(results)],
        where=html(where(results)),
        facts=[html(line) for line in workload.header(results.records)],
        first=sortable(first_table(ranking)),
        sheets=[sortable(sheet) for sheet in (*sheets(results), *([limits] if limits else []))],
        caption=html(caption(results)),
        batches=[html(line) for line in workload.remarks(results.rows, results.baseline)],
        reasons=[html(reason) for reason in results.reasons],
        caveats=[html(line) for line in _caveats(results)],
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
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"


def _caveats(results: Comparison) -> list[str]:
    workload = workload_of(results.workload)
    return [*workload.caveats(results.records, results.rows, baseline=results.baseline), *left_out(results)]


def _profiles(results: Comparison) -> list[tuple[str, Sortable]]:
    tables = []
    for name, records in results.members.items():
        if profile := profile_of(records):
            heading, sheet, footer = profile_table(profile, what=profile.subject)
            assert isinstance(sheet, Sheet)
            tables.append((plain_line(name), sortable(replace(sheet, title=str(heading), notes=(str(footer),)))))
    return tables


def _commands(results: Comparison) -> list[tuple[str, str]]:
    return [
        (plain_line(name), plain_line(records[0].reproduce, longest=1000)) for name, records in results.members.items()
    ]


@dataclass(frozen=True)
class Field:
    """One cell of a table."""

    text: Markup
    sort: float | None
    """Number by which its column is sorted."""
    align: str


@dataclass(frozen=True)
class Heading:
    text: str
    align: str
    help: str
    first: str
    """Order of the first click, which puts the best row first."""


@dataclass(frozen=True)
class Sortable:
    """A table that can be sorted."""

    title: str
    headings: tuple[Heading, ...]
    rows: tuple[tuple[Field, ...], ...]
    bold: tuple[bool, ...]
    """True for each emphasized row."""
    notes: tuple[Markup, ...]


def sortable(sheet: Sheet) -> Sortable:
    """Return the table for the page's template."""
    return Sortable(
        title=plain_line(sheet.title, longest=300) or "Variants",
        headings=tuple(
            Heading(
                plain_line(column.heading),
                column.align,
                column.help,
                "descending" if column.is_more_better else "ascending",
            )
            for column in sheet.columns
        ),
        rows=tuple(tuple(_field(column, row) for column in sheet.columns) for row in sheet.rows),
        bold=tuple(map(sheet.is_bold, sheet.rows)),
        notes=tuple(map(html, sheet.notes)),
    )


def _field(column: Column[Any], row: Any) -> Field:
    return Field(html(cell(column.text(row))), column.sort(row) if column.sort else None, column.align)


def html(text: str) -> Markup:
    """Render a sentence or a cell."""
    tags = {"": "{}", "bold": "<strong>{}</strong>", "code": "<code>{}</code>"}
    return Markup("").join(Markup(tags[style]).format(part) for part, style in spans(text))


MOST_VALUES = 4
"""Number of values of one line that are shown. The others are counted."""


def surroundings(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return name and value of each known property of the environment."""
    lines = [(name, _values(records, value_of)) for name, value_of in _FIELDS]
    packages = sorted({name for record in records for name in record.environment.packages})
    variables = sorted({name for record in records for name in record.environment.variables})
    lines += [(plain_line(name), _values(records, _package(name))) for name in packages]
    lines += [(plain_line(name), _values(records, _variable(name))) for name in variables]
    return [(name, value) for name, value in lines if value]


def _values(records: Sequence[RunRecord], value_of: Callable[[MachineFacts], str | None]) -> str:
    values = list(dict.fromkeys(plain_line(value) for record in records if (value := value_of(record.environment))))
    return abridged(values, MOST_VALUES, separator=" or ")


def _package(name: str) -> Callable[[MachineFacts], str | None]:
    return lambda environment: environment.packages.get(name)


def _variable(name: str) -> Callable[[MachineFacts], str | None]:
    return lambda environment: environment.variables.get(name)


def _device_memory(environment: MachineFacts) -> str | None:
    return gib(environment.device.memory_bytes) if environment.device.memory_bytes else None


def _memory(environment: MachineFacts) -> str | None:
    return gib(environment.memory_bytes) if environment.memory_bytes else None


def _number(number: int | None) -> str | None:
    return None if number is None else str(number)


_FIELDS: tuple[tuple[str, Callable[[MachineFacts], str | None]], ...] = (
    ("device", lambda environment: environment.device.name),
    ("device memory", _device_memory),
    ("capability", lambda environment: environment.device.capability),
    ("driver", lambda environment: environment.device.driver),
    ("CUDA or HIP of torch", lambda environment: environment.device.runtime),
    ("processor", lambda environment: environment.cpu),
    ("logical processors", lambda environment: _number(environment.cores)),
    ("threads of torch", lambda environment: _number(environment.threads)),
    ("main memory", _memory),
    ("system", lambda environment: environment.system),
    ("Python", lambda environment: environment.python),
    ("benchmarker's commit", lambda environment: environment.commit),
)
