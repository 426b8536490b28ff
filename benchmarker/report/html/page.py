"""The report: an HTML page with all tables and charts, in one file that makes no requests, and its charts as PNG files.

Every number comes from the columns and rows of `benchmarker compare`. Names come from files that someone else may have
written: `html` and jinja2 escape every text, and a content security policy forbids all requests and all scripts except
the page's own script.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import jinja2
from markupsafe import Markup

from benchmarker import __version__
from benchmarker.comparison.ranking import ranking_of
from benchmarker.core.errors import ResultsError, SpecError
from benchmarker.core.formatting import abridged, gib, plural
from benchmarker.core.tables import Sheet, cell, plain_line, spans
from benchmarker.profiling.profile_table import profile_table
from benchmarker.report.answer import answer
from benchmarker.report.caveats import caption, each
from benchmarker.report.charts.stacked import profile_of
from benchmarker.report.charts.style import DARK, LIGHT, Chart, to_png, to_svg
from benchmarker.report.columns import first_table
from benchmarker.report.compare import Comparison, caveats_of, forced, header_of, left_out, remarks_of, sheets, where
from benchmarker.report.explanations import without_why
from benchmarker.schema.record import Environment, RunRecord
from benchmarker.schema.record_io import write_atomically
from benchmarker.schema.registry import workload_of

RANDOM_WEIGHTS = (
    "Random weights: time and memory are those of normally distributed weights; text and quality mean nothing"
)
"""Badge of a page whose records have random weights."""
MOST_VALUES = 4  # Largest number of shown values of one property of the environment. The others are counted.


def write_report(results: Comparison, path: Path) -> list[Chart]:
    """Write the page atomically and return its charts.

    Raises:
        SpecError: The file name does not end in .html or .htm.
        ResultsError: The file cannot be written.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise SpecError(f"--output {path}: a report is an HTML file; give it a name that ends in .html")
    if path.is_dir():
        raise ResultsError(f"{path}: that is a folder; give --output the name of a file")
    charts = workload_of(results.workload).charts(results)
    write_atomically(path, to_html(results, charts))
    return charts


def write_plots(results: Comparison, charts: Sequence[Chart], folder: Path) -> list[Path]:
    """Write each chart as a PNG file and return the paths. Raises ResultsError."""
    remark = " (random weights)" if any(row.has_random_weights for row in results.rows) else ""
    paths = [folder / f"{chart.name}.png" for chart in charts]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for chart, path in zip(charts, paths, strict=True):
            to_png(chart, path, remark=remark)
    except OSError as error:
        raise ResultsError(
            f"{folder}: the charts cannot be written there ({os.strerror(error.errno or 0)}); "
            "choose another folder with --plots"
        ) from error
    return paths


def to_html(results: Comparison, charts: Sequence[Chart]) -> str:
    script = (Path(__file__).parent / "parts" / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    subjects = each(results.records, lambda record: record.subject_name)
    devices = each(results.records, lambda record: record.environment.device.name)
    ranking = ranking_of(results)
    page = page_templates().get_template("page.html")
    return page.render(
        title=f"{subjects} on {devices}",
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'",
        light=LIGHT.variables,
        dark=DARK.variables,
        script=Markup(script),
        badge=RANDOM_WEIGHTS if any(row.has_random_weights for row in results.rows) else "",
        answer=answer(results, ranking),
        forced=forced(results),
        where=where(results),
        facts=header_of(results),
        first=first_table(ranking, without_why(results.explained)),
        sheets=[*sheets(results), *workload_of(results.workload).limit_sheets(results.rows, whole=True)],
        caption=caption(results),
        batches=remarks_of(results),
        reasons=results.reasons,
        caveats=[*caveats_of(results, is_whole=True), *left_out(results)],
        charts=charts,
        profiles=_profiles(results),
        environment=surroundings(results.records),
        commands=[(name, records[0].reproduce) for name, records in results.members.items()],
        footer=f"benchmarker {__version__}, from {plural(len(results.records), 'record', 'records')}. "
        "The values are those of benchmarker compare.",
    )


def html(text: str) -> Markup:
    tags = {"": "{}", "bold": "<strong>{}</strong>", "code": "<code>{}</code>"}
    return Markup("").join(Markup(tags[style]).format(part) for part, style in spans(text))


def page_templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("benchmarker.report.html", "parts"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "html": html,
        "cell": cell,
        "plain": plain_line,
        "svg": lambda chart: Markup(to_svg(chart)),
        "variables": lambda colours: "; ".join(f"--{name}: {colour}" for name, colour in colours.items()),
    }
    templates.filters |= filters
    return templates


def _profiles(results: Comparison) -> list[tuple[str, Sheet]]:
    tables = []
    for name, records in results.members.items():
        if profile := profile_of(records):
            heading, sheet, footer = profile_table(profile, what=profile.subject)
            assert isinstance(sheet, Sheet)
            tables.append((name, replace(sheet, title=str(heading), notes=(str(footer),))))
    return tables


def surroundings(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return (name, value) of each recorded property of the environment: `("driver", "570.86")`."""
    environments = [record.environment for record in records]
    facts = [_facts(environment) for environment in environments]
    packages = sorted({name for environment in environments for name in environment.packages})
    variables = sorted({name for environment in environments for name in environment.variables})
    lines = [
        *((name, _values(values[name] for values in facts)) for name in facts[0]),
        *((name, _values(environment.packages.get(name) for environment in environments)) for name in packages),
        *((name, _values(environment.variables.get(name) for environment in environments)) for name in variables),
    ]
    return [(plain_line(name), value) for name, value in lines if value]


def _values(values: Iterable[object]) -> str:
    texts = [plain_line(str(value)) for value in values if value not in (None, "")]
    return abridged(list(dict.fromkeys(texts)), MOST_VALUES, separator=" or ")


def _facts(environment: Environment) -> dict[str, object]:
    device = environment.device
    return {
        "device": device.name,
        "device memory": gib(device.memory_bytes) if device.memory_bytes else None,
        "capability": device.capability,
        "driver": device.driver,
        "CUDA or HIP of torch": device.runtime,
        "processor": environment.cpu,
        "logical processors": environment.cores,
        "threads of torch": environment.threads,
        "main memory": gib(environment.memory_bytes) if environment.memory_bytes else None,
        "system": environment.system,
        "Python": environment.python,
        "benchmarker's commit": environment.commit,
    }
