"""`benchmarker explain`: reasons for the speed of a variant, from records, profiler tables in a log, or a trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarker.cli.common_options import Force
from benchmarker.core.console import Terminal
from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.core.tables import Block

if TYPE_CHECKING:
    from benchmarker.logs.explain_log import LogReading
    from benchmarker.report.compare import Comparison

FORMATS = ("markdown", "json")


def explain(
    paths: Annotated[
        list[Path], typer.Argument(help="Records, folders of records, logs with profiler tables, or Chrome traces.")
    ],
    baseline: Annotated[
        str | None, typer.Option(help="Variant with which the others are compared.  \\[default: the sweep's, or fp16]")
    ] = None,
    compare_tables: Annotated[
        bool, typer.Option("--compare", help="Show the profiler tables of a log side by side.")
    ] = False,
    form: Annotated[
        str, typer.Option("--format", help="markdown, or json with one object per table and variant.")
    ] = "markdown",
    force: Force = False,
) -> None:
    """Explain the speed of each variant: where the time of a token goes, and how to reduce it.

    Example: benchmarker explain results/nvidia-h100-80gb-hbm3

    Example: benchmarker explain old-run.log --compare

    Example: benchmarker explain trace.json.gz
    """
    if form not in FORMATS:
        raise SpecError(f"--format {form}: no such format{did_you_mean(form, FORMATS)}")
    from benchmarker.logs.explain_log import is_log_or_trace, read_log_or_trace
    from benchmarker.report.compare import compare, compare_records

    files = [path for path in paths if is_log_or_trace(path)]
    if compare_tables and not files:
        raise SpecError("--compare shows the tables of a log side by side, and no log is given; records need no option")
    readings = [read_log_or_trace(path) for path in files]
    explained = [
        compare_records(reading.records, baseline=baseline, force=force) for reading in readings if reading.records
    ]
    if records := [path for path in paths if path not in files]:
        explained.append(compare(records, baseline=baseline, force=force))
    if form == "json":
        _print_json(readings, explained)
        return
    from benchmarker.report.explanations import explained_blocks

    terminal = Terminal()
    for reading in readings:
        for part in _tables(reading, is_side_by_side=compare_tables):
            terminal.table(part)
    for comparison in explained:
        terminal.table(explained_blocks(comparison))


def _print_json(readings: Sequence[LogReading], explained: Sequence[Comparison]) -> None:
    from benchmarker.explain.explain import explanations_to_rows
    from benchmarker.logs.table_report import table_to_row

    rows = [table_to_row(report) for reading in readings for report in reading.reports]
    rows += [row for log in explained for row in explanations_to_rows(log.explained, log.contrasts)]
    typer.echo(json.dumps(rows, indent=1, allow_nan=False))


def _tables(reading: LogReading, *, is_side_by_side: bool) -> list[list[Block]]:
    from benchmarker.logs.table_contrast import tables_contrasted, tables_side_by_side
    from benchmarker.logs.table_report import table_to_blocks

    parts = [table_to_blocks(report) for report in reading.reports]
    if len(reading.reports) > 1:
        parts += [tables_side_by_side(reading.reports)] if is_side_by_side else []
        parts += [tables_contrasted(reading.reports)]
    if reading.why_no_records:
        parts.append([f"Its latencies are not used: {reading.why_no_records}."])
    return [part for part in parts if part]
