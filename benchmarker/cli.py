"""The `benchmarker` command. Each verb checks its arguments first and imports torch only if it needs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from benchmarker import __version__
from benchmarker.run import run_command
from benchmarker.terminal import Terminal, one_line_errors

app = typer.Typer(
    help="Which quantization should I run on my GPU, and why is it fast or slow?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
checkpoints = typer.Typer(help="Make, list and remove cached checkpoints.", no_args_is_help=True)
app.add_typer(checkpoints, name="checkpoint")
app.command("run")(run_command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"benchmarker {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def sweep(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="YAML file with the variants.")],
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Fresh processes of each variant.  [default: the config's, or 5]")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One round: a first look, without verdicts.")] = False,
    publish: Annotated[bool, typer.Option("--publish", help="Ten rounds: for numbers that others will read.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a sweep that was stopped: the folder named, or the last one.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the records.  [default: results/<device>/<model>/<time>]")
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds for the whole sweep.")] = None,
    load_timeout: Annotated[float, typer.Option(min=0, help="Seconds for loading a variant.")] = 3600,
    cell_timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds for a cell.  [default: ten times what it took before]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the order of the variants.  [default: a new one]")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and stop there.")] = False,
) -> None:
    """Run the variants of a config in rounds, each time in a fresh process, then compare them.

    After the config: names of variants (all of them if none is given), and options that are passed on to every run.

    Example: benchmarker sweep configs/qwen3-4b.yaml int8 gptq --runs 3
    """
    from benchmarker.sweep import Settings, run_sweep
    from benchmarker.sweeping.arguments import rounds_of

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
        )
        failed = run_sweep(config, context.args, Terminal(quiet="--quiet" in context.args), settings)
    if failed:
        raise typer.Exit(1)


@app.command()
def compare(
    paths: Annotated[list[Path], typer.Argument(help="Records, or folders of records.")],
    baseline: Annotated[str | None, typer.Option(help="Variant that speed-ups are against.  [default: fp16]")] = None,
    form: Annotated[str, typer.Option("--format", help="markdown, or json with one object a row.")] = "markdown",
    force: Annotated[bool, typer.Option("--force", help="Compare what differs in device, model or versions.")] = False,
) -> None:
    """Print the tables again, from saved records.

    Example: benchmarker compare results/nvidia-h100-80gb-hbm3
    """
    from benchmarker.compare import compare as compare_records
    from benchmarker.compare import to_rows
    from benchmarker.errors import SpecError, did_you_mean

    with one_line_errors():
        if form not in ("markdown", "json"):
            raise SpecError(f"--format {form}{did_you_mean(form, ('markdown', 'json'))}")
        comparison = compare_records(paths, baseline=baseline, force=force)
        if form == "json":
            typer.echo(json.dumps(to_rows(comparison), indent=1, allow_nan=False))
        else:
            from benchmarker.report.markdown import to_markdown

            Terminal().table(to_markdown(comparison))


@checkpoints.command("list")
def list_checkpoints() -> None:
    """Show the cached checkpoints and how much room they take.

    Example: benchmarker checkpoint list
    """
    from benchmarker.loaders.cache import cache_folder, entries
    from benchmarker.units import gib

    found = entries()
    for entry in found:
        about = entry.description
        options = " ".join(f"{key}={value}" for key, value in about.options.items())
        typer.echo(f"{entry.key}  {gib(entry.size_bytes):>10}  {about.kind:5}  {about.model}  {options}")
    typer.echo(f"{len(found)} in {cache_folder()}, {gib(sum(entry.size_bytes for entry in found))}")


@checkpoints.command("remove")
def remove_checkpoint(
    keys: Annotated[list[str] | None, typer.Argument(help="Keys as listed, or their first digits.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all of them.")] = False,
) -> None:
    """Delete cached checkpoints.

    Example: benchmarker checkpoint remove 3f9c
    """
    from benchmarker.errors import SpecError
    from benchmarker.loaders.cache import entries, remove
    from benchmarker.units import gib

    with one_line_errors():
        if not keys and not everything:
            raise SpecError("which checkpoint? give its key, or --all; 'benchmarker checkpoint list' shows them")
        for key in [entry.key for entry in entries()] if everything else keys or []:
            entry = remove(key)
            typer.echo(f"removed {entry.key} ({gib(entry.size_bytes)})")


@checkpoints.command("make")
def make_checkpoint(
    model: Annotated[str, typer.Option(help="Hub id, folder, or shipped shape.")] = "Qwen/Qwen3-4B",
    revision: Annotated[str | None, typer.Option(help="Hub branch, tag or commit.")] = None,
    quant: Annotated[str, typer.Option(help="The form that it is for.")] = "fp16",
    load_format: Annotated[str, typer.Option(help="auto, or dummy for random weights.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float16, bfloat16 or float32.")] = "float16",
    option: Annotated[list[str] | None, typer.Option(help="The loader's own, as key=value; repeat it.")] = None,
    device: Annotated[str, typer.Option(help="Where it is quantized: auto, cpu, cuda or cuda:N.")] = "auto",
    verbose: Annotated[bool, typer.Option("--verbose", help="Let the libraries talk.")] = False,
) -> None:
    """Download, quantize or make a checkpoint now, so that a later run only loads it.

    Example: benchmarker checkpoint make --quant gptq --load-format dummy
    """
    from benchmarker.job import make_job
    from benchmarker.terminal import quiet_libraries

    with one_line_errors():
        job = make_job(
            config=None,
            variant=None,
            model={"id": model, "revision": revision, "load_format": load_format, "dtype": dtype},
            form={"quant": quant},
            options=option or [],
            grid={},
            procedure={},
            device=device,
            output=None,
            part=None,
            reproduce="",
        )
        from benchmarker.checkpoints import prepare_checkpoint
        from benchmarker.device import find_device

        with quiet_libraries(verbose=verbose) as streams:
            terminal = Terminal(verbose=verbose, streams=streams)
            checkpoint = prepare_checkpoint(job.model, job.variant, find_device(device), terminal)
            terminal.line(f"ready: {checkpoint.folder}")


def main() -> None:
    """Entry of the `benchmarker` command."""
    app(prog_name="benchmarker")
