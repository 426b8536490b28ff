"""`benchmarker explain`: why a variant is fast or slow, from records, or from profiler tables in a log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarker.terminal import Terminal, one_line_errors

if TYPE_CHECKING:
    from benchmarker.explaining.logs import LogReading
    from benchmarker.record import RunRecord


def explain(
    paths: Annotated[list[Path], typer.Argument(help="Records, folders of them, or logs with profiler tables.")],
    baseline: Annotated[
        str | None, typer.Option(help="Variant to explain the others against.  [default: fp16]")
    ] = None,
    compare_tables: Annotated[
        bool, typer.Option("--compare", help="Set the profiler tables of a log side by side.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Take records that differ in device, model or versions.")
    ] = False,
) -> None:
    """Say why each variant is fast or slow: what a token waits for, part by part, and what to do about it.

    Example: benchmarker explain results/nvidia-h100-80gb-hbm3

    Example: benchmarker explain old-run.log --compare
    """
    with one_line_errors():
        from benchmarker.explaining.logs import is_text, read_text

        texts = [path for path in paths if is_text(path)]
        others = [path for path in paths if path not in texts]
        parts = [part for path in texts for part in _of_text(read_text(path), baseline, is_side_by_side=compare_tables)]
        if others:
            from benchmarker.collect import collect

            parts += _of_records(collect(others).records, baseline, force=force)
        terminal = Terminal()
        for part in parts:
            terminal.table(part)


def _of_text(reading: LogReading, baseline: str | None, *, is_side_by_side: bool) -> list[str]:
    """Every table by itself, then the runs whose latencies stand above them."""
    from benchmarker.explaining.table_markdown import table_to_markdown, tables_side_by_side

    parts = [table_to_markdown(report) for report in reading.reports]
    if is_side_by_side and len(reading.reports) > 1:
        parts.append(tables_side_by_side(reading.reports))
    if reading.records:
        parts += _of_records(reading.records, baseline, force=False)
    return parts


def _of_records(records: Sequence[RunRecord], baseline: str | None, *, force: bool) -> list[str]:
    from benchmarker.comparison import compare_records
    from benchmarker.explained import explained_to_markdown

    return [explained_to_markdown(compare_records(records, baseline=baseline, force=force))]
