"""`benchmarker compare`: the tables from saved records, and the gate between two sweeps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarker.core.console import Terminal, one_line_errors
from benchmarker.core.errors import SpecError, did_you_mean

FORMATS = ("markdown", "json")


def compare(
    paths: Annotated[list[Path], typer.Argument(help="Records, or folders of records.")],
    baseline: Annotated[
        str | None, typer.Option(help="Variant that speed-ups are against.  \\[default: the sweep's, or fp16]")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="markdown, or json with one object a row.")] = "markdown",
    force: Annotated[bool, typer.Option("--force", help="Compare what differs in device, model or versions.")] = False,
    budget: Annotated[
        str | None, typer.Option(help="Recommend one variant that keeps to this, as 'memory<6GiB, kld<0.05'.")
    ] = None,
    fail_if: Annotated[
        str | None,
        typer.Option(help="Of two sweeps, before and after: exit 1 where it is really slower, as slower:5%."),
    ] = None,
) -> None:
    """Print the tables again, from saved records.

    Example: benchmarker compare results/nvidia-h100-80gb-hbm3

    Example: benchmarker compare results/nvidia-h100-80gb-hbm3 --budget "memory<6GiB, kld<0.05"

    Example: benchmarker compare results/before results/after --fail-if slower:5%
    """
    with one_line_errors():
        if form not in FORMATS:
            raise SpecError(f"--format {form}: no such format{did_you_mean(form, FORMATS)}")
        if budget is not None and fail_if is not None:
            raise SpecError("--budget and --fail-if answer two questions; ask them one by one")
        if fail_if is None:
            _show(paths, baseline=baseline, as_json=form == "json", force=force, budget=budget)
            return
        is_failed = _gate(paths, fail_if, baseline=baseline, as_json=form == "json", force=force)
    if is_failed:
        raise typer.Exit(1)


def _show(paths: Sequence[Path], *, baseline: str | None, as_json: bool, force: bool, budget: str | None) -> None:
    from benchmarker.comparison.compare import to_rows
    from benchmarker.comparison.recommend import recommend
    from benchmarker.report.compare import compare as compare_records
    from benchmarker.report.markdown import to_markdown
    from benchmarker.report.recommendation import recommendation_to_dict, recommendation_to_markdown

    comparison = compare_records(paths, baseline=baseline, force=force)
    found = recommend(comparison, budget) if budget is not None else None
    if as_json:
        answer = recommendation_to_dict(found) if found else to_rows(comparison)
        typer.echo(json.dumps(answer, indent=1, allow_nan=False))
        return
    terminal = Terminal()
    terminal.table(to_markdown(comparison))
    if found:
        terminal.table(recommendation_to_markdown(found))


def _gate(paths: Sequence[Path], limit: str, *, baseline: str | None, as_json: bool, force: bool) -> bool:
    """Print the gate's answer; true where it failed."""
    from benchmarker.comparison.gate import check
    from benchmarker.report.compare import compare as compare_records
    from benchmarker.report.gate import gate_to_markdown, gate_to_rows

    if len(paths) != 2:
        raise SpecError(f"--fail-if compares two sweeps, before and after; {len(paths)} given")
    before, after = (compare_records([path], baseline=baseline, force=force) for path in paths)
    gate = check(before, after, limit=limit, force=force)
    if as_json:
        typer.echo(json.dumps(gate_to_rows(gate), indent=1, allow_nan=False))
    else:
        Terminal().table(gate_to_markdown(gate))
    return gate.is_failed
