"""`benchmarker doctor`: what this machine can run, and what to do about the rest."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarker.core.console import Terminal, one_line_errors, quiet_libraries


def doctor(
    workload: Annotated[
        str | None, typer.Argument(help="Whose variants are looked at.  \\[default: generation]")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only look; try nothing and measure nothing.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N (also on ROCm).")] = "auto",
) -> None:
    """Say which variants run here in which runtime, and for each no, the one thing to do.

    Tries each on a two-layer model and checks the instruments against known truths; takes a few minutes. What
    it prints can be pasted into an issue. Exits with 1 where a variant runs in no runtime, or an instrument is off.

    Example: benchmarker doctor --quick
    """
    with one_line_errors():
        from benchmarker.doctor.visit import visit
        from benchmarker.schema.registry import DEFAULT_WORKLOAD

        with quiet_libraries(verbose=False) as streams:
            is_well = visit(device, Terminal(streams=streams), quick=quick, workload=workload or DEFAULT_WORKLOAD)
    if not is_well:
        raise typer.Exit(1)
