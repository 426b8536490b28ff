"""Writing a report: the page as one file, and its charts as PNG files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarker.core.errors import MissingLibraryError, ResultsError, SpecError
from benchmarker.schema.record_io import write_atomically
from benchmarker.schema.registry import workload_of

if TYPE_CHECKING:
    from benchmarker.report.charts.style import Chart
    from benchmarker.report.compare import Comparison


def write_report(results: Comparison, path: Path) -> list[Chart]:
    """Write the page atomically and return its charts.

    Raises:
        SpecError: The file name does not end in .html or .htm.
        MissingLibraryError: A drawing library is not installed.
        ResultsError: The file cannot be written.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise SpecError(f"--output {path}: a report is an HTML file; give it a name that ends in .html")
    if path.is_dir():
        raise ResultsError(f"{path}: that is a folder; give --output the name of a file")
    with _drawing_libraries():
        from benchmarker.report.html.page import to_html

        charts = workload_of(results.workload).charts(results)
        page = to_html(results, charts)
    write_atomically(path, page)
    return charts


def write_plots(results: Comparison, charts: Sequence[Chart], folder: Path) -> list[Path]:
    """Write each chart as a PNG file and return the paths. Raises as `write_report`."""
    with _drawing_libraries():
        from benchmarker.report.charts.style import to_png
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


@contextmanager
def _drawing_libraries() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"the report needs {error.name}, which is not installed: pip install {error.name}"
        raise MissingLibraryError(message) from error
