"""`benchmarker checkpoint`: the cached checkpoints, quantized and random ones."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from benchmarker.cli.verb_group import VerbGroup
from benchmarker.core.console import Terminal, one_line_errors

checkpoints = typer.Typer(
    cls=VerbGroup,
    help="Make, list and remove cached checkpoints.\n\nExample: benchmarker checkpoint list",
    no_args_is_help=True,
)


@checkpoints.command("list")
def list_checkpoints() -> None:
    """Show the cached checkpoints and how much room they take.

    Example: benchmarker checkpoint list
    """
    from benchmarker.checkpoints.cache import cache_folder, entries
    from benchmarker.core.formatting import gib

    cached = entries()
    for entry in cached:
        about = entry.description
        options = " ".join(f"{key}={value}" for key, value in about.options.items())
        typer.echo(f"{entry.key}  {gib(entry.size_bytes):>10}  {about.kind:5}  {about.model}  {options}")
    typer.echo(f"{len(cached)} in {cache_folder()}, {gib(sum(entry.size_bytes for entry in cached))}")


@checkpoints.command("remove")
def remove_checkpoint(
    keys: Annotated[list[str] | None, typer.Argument(help="Keys as listed, or their first digits.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all of them.")] = False,
) -> None:
    """Delete cached checkpoints.

    Example: benchmarker checkpoint remove 3f9c
    """
    from benchmarker.checkpoints.cache import entries, remove
    from benchmarker.core.errors import SpecError
    from benchmarker.core.formatting import gib

    with one_line_errors():
        if not keys and not everything:
            raise SpecError("which checkpoint? give its key, or --all; 'benchmarker checkpoint list' shows them")
        if keys and everything:
            raise SpecError("--all removes every checkpoint, and a key only one; give one of the two")
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
    from benchmarker.core.console import quiet_libraries
    from benchmarker.execution.make_job import make_job

    with one_line_errors():
        fields = {"id": model, "revision": revision, "load_format": load_format, "dtype": dtype}
        typed = {f"subject.model.{name}": value for name, value in fields.items()}
        job: Any = make_job({**typed, "variant.quant": quant, "variant.options": option or None})
        from benchmarker.hardware.device import find_device
        from benchmarker.quantization.prepare import prepare_checkpoint

        with quiet_libraries(verbose=verbose) as streams:
            terminal = Terminal(verbose=verbose, streams=streams)
            checkpoint = prepare_checkpoint(job.model, job.variant, find_device(device), terminal)
            terminal.line(f"ready: {checkpoint.folder}")
