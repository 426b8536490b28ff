"""Measure one variant in this process and write one record: `benchmarker run` and `python -m benchmarker.run`.

A process measures one variant: memory marks are clean, no compiler state is left over from another variant, and a crash
costs one variant. The first word may name a workload; the options are then those of that workload.
"""

from __future__ import annotations

import gc
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from benchmarker.cli.run_options import RunHelp, run_help, saved_help, typed_values, with_options
from benchmarker.core.console import Terminal, one_line_errors, print_what_can_be_printed, quiet_libraries
from benchmarker.core.errors import SpecError, comma_hint
from benchmarker.core.process import end_with_parent, no_garbage_collection

if TYPE_CHECKING:
    from benchmarker.schema.job import Job
    from benchmarker.schema.record import RunRecord
    from benchmarker.workloads.base import Workload

WITH_JOB = ("--job", "--part", "--device", "--output", "--quiet", "--verbose")
"""Options that are allowed together with --job, whose file contains all others."""


def run_workload(workload: Workload, **values: Any) -> None:
    """Measure the job that the options describe, save its record and print the result."""
    quiet, verbose = values["quiet"], values["verbose"]
    with one_line_errors():
        job = job_of(workload, values)
        if values["find_limit"]:
            _print_limit(job, values["find_limit"], Terminal(quiet=quiet, verbose=verbose))
            return
        if job.part:
            end_with_parent()
        with quiet_libraries(verbose=verbose) as streams:
            # Libraries print while they are imported, too. The objects that they create stay: repeated garbage
            # collections over them take a sixth of the import time.
            from benchmarker.core.errors import report_library_conflicts

            with no_garbage_collection(), report_library_conflicts():
                from benchmarker.execution.single_run import Run
                from benchmarker.report.run_summary import print_result

                gc.freeze()

            terminal = Terminal(quiet=quiet, verbose=verbose, streams=streams)
            run = Run(job, terminal)
            record = run.execute()
            if not job.part:
                print_result(record, run.path, terminal, run.workload)
    if is_incomplete(record):
        raise typer.Exit(1)


def job_of(workload: Workload, values: Mapping[str, Any]) -> Any:
    """Return the job that the options describe.

    Args:
        values: Values of all options by the names of their parameters, and the context of typer.

    Raises:
        SpecError: An option is wrong.
    """
    # Imported here, because the classes of a job take as long as the rest of `benchmarker --help`.
    from benchmarker.execution.make_job import make_job
    from benchmarker.schema.registry import DEFAULT_WORKLOAD

    if values["job_file"] is not None:
        if values["find_limit"]:
            raise SpecError("--find-limit: a saved job contains its cells; leave --job out")
        return _saved_job(values)
    return make_job(
        typed_values(workload, values),
        workload=workload.name if workload.name != DEFAULT_WORKLOAD else None,
        config=values["config"],
        variant=values["variant"],
        device=values["device"],
        output=values["output"],
        reproduce=_reproduce(_arguments()),
    )


def _saved_job(values: Mapping[str, Any]) -> Job:
    """Return the job in a file, for a user or as one process of a sweep."""
    from benchmarker.execution.job_file import read_job_file
    from benchmarker.schema.job import Part

    context, path = values["context"], values["job_file"]
    sources = {parameter.opts[0]: context.get_parameter_source(parameter.name) for parameter in context.command.params}
    typed = [option for option, source in sources.items() if source and source.name == "COMMANDLINE"]
    if others := [option for option in typed if option not in WITH_JOB]:
        raise SpecError(f"--job {path}: contains all options of the measurement; leave {others[0]} out")
    job = read_job_file(path)
    if values["part"] is not None:
        return job.in_part(Part.model_validate_json(values["part"]))
    if getattr(job.subject, "trust_code", False):
        # Anyone may have written the file: only the user's own command line permits code to be run.
        raise SpecError(f"--job {path}: runs the code of a model; repeat the measurement with options and --trust-code")
    changes = {"part": None, "output": values["output"], "reproduce": _reproduce(_arguments())}
    return job.model_copy(update=changes | ({"device": values["device"]} if "--device" in typed else {}))


def _print_limit(job: Job, axis: str, terminal: Terminal) -> None:
    """Find the largest value of an axis that fits into memory, and print it with the folder of its records."""
    from benchmarker.core.formatting import slug
    from benchmarker.core.tables import plain_line
    from benchmarker.sweep.find_limit import find_limit
    from benchmarker.sweep.sweep_state import now_id

    title = slug(job.title.lower())
    folder = job.output or Path("results") / "limits" / title / f"{slug(job.variant.name)}-{now_id()}"
    limit, _ = find_limit(job, axis, terminal, folder=folder)
    terminal.table(
        [f"{plain_line(job.variant.name)}: {limit.words}", f"records: {plain_line(str(folder), longest=500)}"]
    )
    if limit.largest is None:
        raise typer.Exit(1)


def is_incomplete(record: RunRecord) -> bool:
    """Return True if a requested cell or quality is missing."""
    missing = (getattr(record, name, None) for name in ("no_quality", "no_tasks"))
    return any(missing) or any(cell.status != "ok" for cell in record.cells)


class RunCommand(TyperCommand):
    """`benchmarker run`, with the options of the workload that its first word names."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if help_content := saved_help(args):
            name = f"{info_name} {args[0]}" if len(args) > 1 else info_name
            return command_with(help_content, lambda **values: None).make_context(name, args[-1:], parent, **extra)
        workload, rest = _workload_and_rest(args)
        name = f"{info_name} {args[0]}" if len(rest) < len(args) else info_name
        with one_line_errors():
            return command_of(run_workload, workload).make_context(name, rest, parent, **extra)

    @property
    def params(self) -> Any:
        """Options of the default workload, for the documents and a shell's completion."""
        return command_of(run_workload, _workload_and_rest([])[0]).params

    @params.setter
    def params(self, ignored: Any) -> None:
        """Ignore the parameters of the function that typer reads, which has none."""


class OptionsOnly(TyperCommand):
    """A command without arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options as typer does; raises SpecError."""
        rest = super().parse_args(ctx, args)
        if ctx.args:
            raise SpecError(f"'{ctx.args[0]}' belongs to no option{comma_hint(ctx.args[0])}")
        return rest


def run_command() -> None:
    """Measure one variant, print the result and save its record."""


def command_of(function: Callable[..., object], workload: Workload) -> Any:
    """Return a command of click, whose types have no public name in typer.

    Args:
        function: Function of the workload and of the options by name.
    """
    return command_with(run_help(workload), lambda **values: function(workload, **values))


def command_with(help_content: RunHelp, function: Callable[..., object]) -> Any:
    """Return a command of click with the options of a workload's run."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(cls=OptionsOnly, context_settings={"allow_extra_args": True})(with_options(function, help_content))
    return typer.main.get_command(app)


def parse_options(workload: Workload, options: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the values of options for every run of a sweep by their place in the job, and the device."""
    command = command_of(lambda _workload, **values: values, workload)
    values = command.main(list(options), prog_name="benchmarker sweep", standalone_mode=False)
    return typed_values(workload, values), values["device"]


def read_job(arguments: Sequence[str]) -> Any:
    """Return the checked job of a run's arguments; None if they request help."""
    from benchmarker.schema.job import PROGRAM

    workload, rest = _workload_and_rest(arguments)
    command = command_of(lambda workload, **values: job_of(workload, values), workload)
    job = command.main(rest, prog_name=PROGRAM, standalone_mode=False)
    # Help prints, and returns an exit code.
    if job is None or isinstance(job, int):
        return None
    return job.model_copy(update={"reproduce": _reproduce(arguments)})


def _workload_and_rest(arguments: Sequence[str]) -> tuple[Workload, list[str]]:
    """Return the workload that the first word, the config or the default gives, and the arguments after the word."""
    from benchmarker.schema.registry import DEFAULT_WORKLOAD, WORKLOADS, workload_of

    words = list(arguments)
    with one_line_errors():
        if words and not words[0].startswith("-") and (words[0] in WORKLOADS or len(words[0].split()) == 1):
            return workload_of(words[0]), words[1:]
        return workload_of(_workload_of_config(words) or DEFAULT_WORKLOAD), words


def _workload_of_config(arguments: Sequence[str]) -> str | None:
    from benchmarker.schema.config_io import workload_in

    for position, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag == "--config":
            path = value if equals else next(iter(arguments[position + 1 :]), "")
            return workload_in(Path(path))
    return None


def _arguments() -> list[str]:
    arguments = sys.argv[1:]
    return arguments[1:] if arguments[:1] == ["run"] else arguments


def _reproduce(arguments: Sequence[str]) -> str:
    from benchmarker.schema.job import PROGRAM

    return f"{PROGRAM} {shlex.join(arguments)}".strip()


def main() -> None:
    """Run `python -m benchmarker.run`."""
    from benchmarker.schema.job import PROGRAM

    print_what_can_be_printed()
    workload, rest = _workload_and_rest(sys.argv[1:])
    with one_line_errors():
        command_of(run_workload, workload)(rest, prog_name=PROGRAM)
