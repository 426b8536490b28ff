"""`benchmarker compare`: the tables from saved records, and the gate between two sweeps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarker.errors import SpecError, did_you_mean
from benchmarker.terminal import Terminal, one_line_errors

FORMATS = ("markdown", "json")


def compare(
    paths: Annotated[list[Path], typer.Argument(help="Records, or folders of records.")],
    baseline: Annotated[str | None, typer.Option(help="Variant that speed-ups are against.  \\[default: fp16]")] = None,
    form: Annotated[str, typer.Option("--format", help="markdown, or json with one object a row.")] = "markdown",
    force: Annotated[bool, typer.Option("--force", help="Compare what differs in device, model or versions.")] = False,
    fail_if: Annotated[
        str | None,
        typer.Option(help="Of two sweeps, before and after: exit 1 where it is really slower, as slower:5%."),
    ] = None,
) -> None:
    """Print the tables again, from saved records.

    Example: benchmarker compare results/nvidia-h100-80gb-hbm3

    Example: benchmarker compare results/before results/after --fail-if slower:5%
    """
    with one_line_errors():
        if form not in FORMATS:
            raise SpecError(f"--format {form}: no such format{did_you_mean(form, FORMATS)}")
        if fail_if is None:
            _show(paths, baseline=baseline, as_json=form == "json", force=force)
            return
        is_failed = _gate(paths, fail_if, baseline=baseline, as_json=form == "json", force=force)
    if is_failed:
        raise typer.Exit(1)


def _show(paths: Sequence[Path], *, baseline: str | None, as_json: bool, force: bool) -> None:
    from benchmarker.comparison import compare as compare_records
    from benchmarker.comparison import to_rows
    from benchmarker.report.markdown import to_markdown

    comparison = compare_records(paths, baseline=baseline, force=force)
    if as_json:
        typer.echo(json.dumps(to_rows(comparison), indent=1, allow_nan=False))
    else:
        Terminal().table(to_markdown(comparison))


def _gate(paths: Sequence[Path], limit: str, *, baseline: str | None, as_json: bool, force: bool) -> bool:
    """Print the gate's answer; true where it failed."""
    from benchmarker.comparison import compare as compare_records
    from benchmarker.gate import check, gate_to_markdown, gate_to_rows

    if len(paths) != 2:
        raise SpecError(f"--fail-if compares two sweeps, before and after; {len(paths)} given")
    before, after = (compare_records([path], baseline=baseline, force=force) for path in paths)
    gate = check(before, after, limit=limit, force=force)
    if as_json:
        typer.echo(json.dumps(gate_to_rows(gate), indent=1, allow_nan=False))
    else:
        Terminal().table(gate_to_markdown(gate))
    return gate.is_failed
