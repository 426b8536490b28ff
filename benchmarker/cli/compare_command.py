"""`benchmarker compare`: the answer and its table from saved records, and the gate between two sweeps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarker.cli import completion
from benchmarker.core.console import Terminal, one_line_errors
from benchmarker.core.errors import SpecError, did_you_mean

FORMATS = ("text", "markdown", "csv", "json")


@dataclass(frozen=True)
class Look:
    """Options for the output of a comparison."""

    form: str
    is_whole: bool
    """True to print every table, caption and caveat."""
    columns: str | None
    """Names of columns, separated by commas."""
    sort: str | None
    """Name of a column."""


def compare(
    paths: Annotated[list[Path], typer.Argument(help="Records, or folders of records.")],
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Variant that all speed-ups are relative to.  \\[default: the unquantized one in the same engine]"
        ),
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="Print every table, cell, caption and caveat.")] = False,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Columns of the table, separated by commas, as 'TTFT,load'.", autocompletion=completion.columns
        ),
    ] = None,
    sort: Annotated[
        str | None, typer.Option(help="Column to sort by, best row first.", autocompletion=completion.columns)
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="text, markdown (to paste), csv or json (one line or object per row, in base units).",
            autocompletion=lambda: list(FORMATS),
        ),
    ] = "text",
    force: Annotated[
        bool, typer.Option("--force", help="Compare records that differ in device, model or versions.")
    ] = False,
    budget: Annotated[
        str | None, typer.Option(help="Recommend one variant within these limits, as 'memory<6GiB, kld<0.05'.")
    ] = None,
    fail_if: Annotated[
        str | None,
        typer.Option(
            help="Compare two sweeps, before and after; exit 1 if a cell is significantly slower, as slower:5%."
        ),
    ] = None,
) -> None:
    """Compare saved records: print the best variant and one table.

    Example: benchmarker compare results/nvidia-h100-80gb-hbm3

    Example: benchmarker compare results/nvidia-h100-80gb-hbm3 --budget "memory<6GiB, kld<0.05"

    Example: benchmarker compare results/nvidia-h100-80gb-hbm3 --all --format markdown

    Example: benchmarker compare results/before results/after --fail-if slower:5%
    """
    with one_line_errors():
        if form not in FORMATS:
            raise SpecError(f"--format {form}: no such format{did_you_mean(form, FORMATS)}")
        if budget is not None and fail_if is not None:
            raise SpecError("--budget and --fail-if are two different comparisons; give one of them")
        if fail_if is None:
            look = Look(form, whole, columns, sort)
            _show(paths, look, baseline=baseline, force=force, budget=budget)
            return
        is_failed = _gate(paths, fail_if, baseline=baseline, as_json=form == "json", force=force)
    if is_failed:
        raise typer.Exit(1)


def _show(paths: Sequence[Path], look: Look, *, baseline: str | None, force: bool, budget: str | None) -> None:
    from benchmarker.comparison.recommend import recommend
    from benchmarker.comparison.results import to_rows
    from benchmarker.core.tables import to_markdown
    from benchmarker.report.answer import recommendation_blocks, recommendation_to_dict
    from benchmarker.report.compare import brief, chosen_sheet, to_csv, whole
    from benchmarker.report.compare import compare as compare_records

    comparison = compare_records(paths, baseline=baseline, force=force)
    recommendation = recommend(comparison, budget) if budget is not None else None
    if look.form == "json":
        answer = recommendation_to_dict(recommendation) if recommendation else to_rows(comparison)
        typer.echo(json.dumps(answer, indent=1, allow_nan=False))
        return
    sheet = chosen_sheet(comparison, look.columns, look.sort) if look.columns or look.sort else None
    if look.form == "csv":
        typer.echo(to_csv(comparison, sheet), nl=False)
        return
    if look.is_whole:
        blocks = [*whole(comparison), *(recommendation_blocks(recommendation) if recommendation else [])]
    else:
        blocks = brief(comparison, recommendation, sheet=sheet)
    if look.form == "markdown":
        typer.echo(to_markdown(blocks), nl=False)
    else:
        Terminal().show(blocks)


def _gate(paths: Sequence[Path], limit: str, *, baseline: str | None, as_json: bool, force: bool) -> bool:
    """Print the result of the gate; return True if it failed."""
    from benchmarker.comparison.gate import check, gate_blocks, gate_to_rows
    from benchmarker.report.compare import compare as compare_records

    if len(paths) != 2:
        raise SpecError(f"--fail-if compares two sweeps, before and after; {len(paths)} given")
    before, after = (compare_records([path], baseline=baseline, force=force) for path in paths)
    gate = check(before, after, limit=limit, force=force)
    if as_json:
        typer.echo(json.dumps(gate_to_rows(gate), indent=1, allow_nan=False))
    else:
        Terminal().table(gate_blocks(gate))
    return gate.is_failed
