"""`benchmarker sweep`: every variant of a config, in rounds of fresh processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarker.core.console import Terminal, one_line_errors

if TYPE_CHECKING:
    from benchmarker.sweep.sweep import Dependencies, Settings


def sweep(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="YAML file with the variants.")],
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Fresh processes of each variant.  \\[default: the config's, or 5]")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One round: a first look, without verdicts.")] = False,
    publish: Annotated[bool, typer.Option("--publish", help="Ten rounds: for numbers that others will read.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a sweep that was stopped: the folder named, or the last one.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for the records.  \\[default: results/<device>/<subject>/<time>]"),
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds for the whole sweep.")] = None,
    load_timeout: Annotated[float, typer.Option(min=0, help="Seconds for loading a variant.")] = 3600,
    cell_timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds for a cell.  \\[default: ten times what it took before]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the order of the variants.  \\[default: a new one]")] = None,
    allow_shared: Annotated[
        bool, typer.Option("--allow-shared", help="Keep, and flag, what was measured beside others on the device.")
    ] = False,
    shared_imports: Annotated[
        bool,
        typer.Option("--shared-imports", help="Import the libraries once a round, and fork its processes of that one."),
    ] = False,
    max_rounds: Annotated[
        int | None,
        typer.Option(
            min=3,
            help="Add rounds, up to so many, until the widest interval is under 4 % of its speed-up.  "
            "\\[default: 10, or none where the config or --rounds says how many]",
        ),
    ] = None,
    max_time: Annotated[
        float | None, typer.Option(min=0, help="Seconds after which no round is added; those asked for are all made.")
    ] = None,
    places: Annotated[
        str | None,
        typer.Option(
            metavar="local:0,1|ray",
            help="Measure whole rounds side by side: on GPUs of this host by number, or on Ray.",
        ),
    ] = None,
    runtime_env: Annotated[
        Path | None,
        typer.Option(help=r"YAML file with Ray's runtime_env.  \[default: what is installed at each host]"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and stop there.")] = False,
) -> None:
    """Run the variants of a config in rounds, each time in a fresh process, then compare them.

    After the config: names of variants (all of them if none is given), and options that are passed on to every run.

    Example: benchmarker sweep configs/qwen3-4b.yaml int8 gptq-torch --runs 3
    """
    from benchmarker.sweep.round_count import rounds_of
    from benchmarker.sweep.sweep import Settings

    with one_line_errors():
        settings = Settings(
            rounds=rounds_of(rounds, quick=quick, publish=publish),
            output=output,
            resume=resume,
            timeout_s=timeout,
            load_timeout_s=load_timeout,
            cell_timeout_s=cell_timeout,
            seed=seed,
            dry_run=dry_run,
            allow_shared=allow_shared,
            shared_imports=shared_imports,
            max_rounds=max_rounds,
            max_time_s=max_time,
            places=places,
            runtime_env=runtime_env,
        )
        failed = sweep_config(config, context.args, Terminal(quiet="--quiet" in context.args), settings)
    if failed:
        raise typer.Exit(1)


def sweep_config(
    config: Path,
    arguments: Sequence[str],
    terminal: Terminal,
    settings: Settings,
    *,
    dependencies: Dependencies | None = None,
) -> list[str]:
    """Run the sweep, and say what came of it: see `run_sweep`.

    Args:
        dependencies: Where a test puts something quicker in.
    """
    from benchmarker.cli.run import read_job
    from benchmarker.cli.sweep_summary import say_ending
    from benchmarker.sweep.sweep import REAL, run_sweep

    return run_sweep(
        config,
        arguments,
        terminal,
        settings,
        read_job=read_job,
        say_ending=say_ending,
        dependencies=dependencies or REAL,
    )
