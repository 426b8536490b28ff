"""The `benchmarker` command and its verbs. Each verb imports its libraries, such as torch, when it runs."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from importlib import import_module
from inspect import cleandoc
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from benchmarker import __version__
from benchmarker.cli.machine_commands import checkpoints, doctor, engines, generate, models
from benchmarker.cli.record_commands import compare, comply, explain, history, import_logs, report, verify
from benchmarker.cli.run_command import RunCommand, run
from benchmarker.cli.sweep_command import sweep
from benchmarker.core.console import one_line_errors, print_what_can_be_printed

UNUSED = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}
"""Classes, by module, that typer imports for help in markdown and for tracebacks. This program uses neither. Their
markdown parser and code highlighter take a third of the time of `--help`."""


class VerbGroup(TyperGroup):
    """Group for `benchmarker`, `benchmarker checkpoint` and `benchmarker engine`, whose own options are all flags."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or set(args) & set(ctx.help_option_names):
            import_help_printer()
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the flags with False as default, because typer imports pydantic to check a missing default."""
        flags = super().get_params(ctx)
        for flag in flags:
            flag.default = flag.default or False
        return flags

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command whose help fits any width: typer keeps the docstring's own line breaks."""
        if (command := super().get_command(ctx, cmd_name)) and command.help:
            command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", cleandoc(command.help))
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; a user's error and Ctrl-C end in one line and an exit code."""
        with one_line_errors():
            return super().invoke(ctx)


def import_help_printer() -> None:
    """Import typer's help printer with empty classes instead of those in UNUSED."""
    absent = {module: name for module, name in UNUSED.items() if module not in sys.modules}
    for module, name in absent.items():
        sys.modules[module] = ModuleType(module)
        setattr(sys.modules[module], name, type(name, (), {}))
    try:
        import_module("typer.rich_utils")
    except (ImportError, AttributeError, TypeError):
        # Another version of typer may use more of these classes. It imports its printer later, which takes longer.
        pass
    finally:
        for module in absent:
            del sys.modules[module]


app = typer.Typer(
    cls=VerbGroup,
    help="Which quantization should I run on my GPU, and why is it fast or slow?\n\n"
    "Start here: benchmarker sweep quickstart",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=RunCommand)(run)
app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(sweep)
for verb in (generate, compare, explain, report, verify, comply, history):
    app.command()(verb)
app.command("import")(import_logs)
app.command()(doctor)
app.command()(models)
app.add_typer(checkpoints, name="checkpoint", cls=VerbGroup)
app.add_typer(engines, name="engine", cls=VerbGroup)


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
    print_what_can_be_printed()
    try:
        with contextlib.ExitStack() as stack:
            if "TORCHELASTIC_RUN_ID" in os.environ and "BENCHMARKER_LEADS" not in os.environ:
                from benchmarker.distributed.ranks import follow, leading

                if os.environ["RANK"] != "0":
                    return follow()
                stack.enter_context(leading())
            app(prog_name="benchmarker")
    except KeyboardInterrupt:
        # A second Ctrl-C while the first one was handled.
        raise SystemExit(130) from None
