"""The `benchmarker` command and its verbs. Each verb imports its libraries, such as torch, when it runs."""

from __future__ import annotations

import contextlib
import os
from typing import Annotated

import typer

from benchmarker import __version__
from benchmarker.cli.compare_command import compare
from benchmarker.cli.explain_command import explain
from benchmarker.cli.generate_command import generate
from benchmarker.cli.machine_commands import checkpoints, doctor, engines
from benchmarker.cli.record_commands import history, import_logs, report, verify
from benchmarker.cli.run_command import RunCommand, run_command
from benchmarker.cli.sweep_command import sweep
from benchmarker.cli.verb_group import VerbGroup
from benchmarker.core.console import print_what_can_be_printed

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
app = typer.Typer(
    cls=VerbGroup,
    help="Which quantization should I run on my GPU, and why is it fast or slow?\n\n"
    "Start here: benchmarker sweep quickstart",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", cls=RunCommand)(run_command)
app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(sweep)
app.command()(generate)
app.command()(compare)
app.command()(explain)
app.command()(report)
app.command()(verify)
app.command()(history)
app.command("import")(import_logs)
app.command()(doctor)
app.add_typer(checkpoints, name="checkpoint")
app.add_typer(engines, name="engine")


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


def main() -> None:
    """Run the `benchmarker` command."""
    print_what_can_be_printed()
    try:
        with contextlib.ExitStack() as stack:
            if "TORCHELASTIC_RUN_ID" in os.environ and "BENCHMARKER_LEADS" not in os.environ:
                from benchmarker.distributed.torchrun import follow, leading

                if os.environ["RANK"] != "0":
                    return follow()
                stack.enter_context(leading())
            app(prog_name="benchmarker")
    except KeyboardInterrupt:
        # A second Ctrl-C while the first one was handled.
        raise SystemExit(INTERRUPTED) from None
