"""`benchmarker report`: one page with the tables, the charts and every caveat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarker.core.console import Terminal, one_line_errors

NAME = "report.html"


def report(
    paths: Annotated[list[Path], typer.Argument(help="Records, or folders of records.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The page to write.  \\[default: report.html in the folder given]"),
    ] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for the charts as PNG files.")] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Variant that speed-ups are against.  \\[default: the sweep's, or fp16]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Compare what differs in device, model or versions.")] = False,
) -> None:
    """Write a page to look at: what `compare` says, with charts. One file, which asks nothing of the network.

    Example: benchmarker report results/nvidia-h100-80gb-hbm3 -o report.html --plots plots
    """
    with one_line_errors():
        from benchmarker.comparison.ranking import ranking_of
        from benchmarker.core.formatting import plural
        from benchmarker.report.answer import answer
        from benchmarker.report.compare import compare
        from benchmarker.report.html.write import write_plots, write_report

        comparison = compare(paths, baseline=baseline, force=force)
        page = output or _beside(paths)
        write_report(comparison, page)
        terminal = Terminal()
        terminal.show(["\n".join(answer(comparison, ranking_of(comparison)))])
        terminal.line(f"report: {page}")
        if plots is not None:
            written = write_plots(comparison, plots)
            terminal.line(f"plots: {plural(len(written), 'file', 'files')} in {plots}")


def _beside(paths: Sequence[Path]) -> Path:
    """In the one folder that was given, else where the user is."""
    return paths[0] / NAME if len(paths) == 1 and paths[0].is_dir() else Path(NAME)
