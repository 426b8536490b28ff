"""Measure one variant in this process and write one record: `python -m benchmarker.run --quant int8`.

One process, one variant: clean memory marks, no compiler state left over from another variant, and a crash that
costs one variant. The first word may name a workload, whose options these are then.
"""

from __future__ import annotations

import gc
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from benchmarker.cli.run_help import RunHelp, run_help, saved_help
from benchmarker.core.console import Terminal, one_line_errors, print_what_can_be_printed, quiet_libraries
from benchmarker.core.errors import SpecError, comma_hint
from benchmarker.core.process import end_with_parent, no_garbage_collection

if TYPE_CHECKING:
    from benchmarker.schema.experiment import ExperimentBase
    from benchmarker.schema.job import Job
    from benchmarker.schema.record import RunRecord
    from benchmarker.workloads.base import Workload

BESIDE_JOB = ("--job", "--part", "--device", "--output", "--quiet", "--verbose")
"""Options that may stand beside --job, which says all the others."""


def asked_job(
    workload: Workload,
    *,
    context: typer.Context,
    config: Path | None,
    job_file: Path | None,
    variant: str | None,
    device: str,
    output: Path | None,
    part: str | None,
    find_limit: str | None = None,
    quiet: bool,  # noqa: ARG001
    verbose: bool,  # noqa: ARG001
    **values: Any,
) -> Any:
    """The job that the options ask for.

    Raises:
        SpecError: With the option at fault.
    """
    # A Job; imported here, because making its classes takes as long as all the rest of `benchmarker --help`.
    from benchmarker.cli.run_options import typed_values
    from benchmarker.execution.make_job import make_job
    from benchmarker.schema.registry import DEFAULT_WORKLOAD

    if job_file is not None:
        if find_limit:
            raise SpecError("--find-limit: a saved job says which cells it measures; leave --job out")
        return _saved_job(context, job_file, part=part, device=device, output=output)
    is_named = workload.name != DEFAULT_WORKLOAD
    return make_job(
        typed_values(workload, values),
        workload=workload.name if is_named else None,
        config=config,
        variant=variant,
        device=device,
        output=output,
        reproduce=_reproduce(_arguments()),
        experiment=context.obj,
    )


def _saved_job(context: typer.Context, path: Path, *, part: str | None, device: str, output: Path | None) -> Job:
    """The job in a file, for a person or as one process of a sweep.

    Raises:
        SpecError: It cannot be read, or an option beside it would change it.
    """
    from benchmarker.execution.job_file import read_job_file
    from benchmarker.schema.job import Part

    sources = {parameter.opts[0]: context.get_parameter_source(parameter.name) for parameter in context.command.params}
    typed = [option for option, source in sources.items() if source and source.name == "COMMANDLINE"]
    if others := [option for option in typed if option not in BESIDE_JOB]:
        raise SpecError(f"--job {path}: says everything of the measurement; leave {others[0]} out")
    job = read_job_file(path)
    if part is not None:
        return job.in_part(Part.model_validate_json(part))
    if getattr(job.subject, "trust_code", False):
        # A file may come from anyone: only a person's own command line says that code may be run.
        raise SpecError(f"--job {path}: runs code of somebody; repeat it with its options and --trust-code")
    changes = {"part": None, "output": output, "reproduce": _reproduce(_arguments())}
    return job.model_copy(update=changes | ({"device": device} if "--device" in typed else {}))


def run_workload(workload: Workload, *, find_limit: str | None, quiet: bool, verbose: bool, **typed: Any) -> None:
    """Do the job that the arguments ask for."""
    with one_line_errors():
        job = asked_job(workload, find_limit=find_limit, quiet=quiet, verbose=verbose, **typed)
        if find_limit:
            _say_limit(job, find_limit, Terminal(quiet=quiet, verbose=verbose))
            return
        if job.part:
            end_with_parent()
        with quiet_libraries(verbose=verbose) as streams:
            # Libraries talk while they are imported, too. What they make then stays: looking through it for garbage
            # again and again takes a sixth of the time to import them.
            from benchmarker.core.packages import report_library_conflicts

            with no_garbage_collection(), report_library_conflicts():
                from benchmarker.cli.run_summary import say_result
                from benchmarker.execution.single_run import Run
                from benchmarker.schema.registry import workload_of

                gc.freeze()

            terminal = Terminal(quiet=quiet, verbose=verbose, streams=streams)
            run = Run(job, terminal)
            record = run.execute()
            if not job.part:
                say_result(record, run.path, terminal, workload_of(job.workload))
    if is_lacking(record):
        raise typer.Exit(1)


def _say_limit(job: Job, axis: str, terminal: Terminal) -> None:
    """Find the largest value of an axis that fits, and print it with where its records are."""
    from benchmarker.core.formatting import slug
    from benchmarker.core.tables import inert
    from benchmarker.schema.registry import workload_of
    from benchmarker.sweep.find_limit import find_limit
    from benchmarker.sweep.session import now_id

    title = slug(workload_of(job.workload).title(job).lower())
    folder = job.output or Path("results") / "limits" / title / f"{slug(job.variant.name)}-{now_id()}"
    limit, _ = find_limit(job, axis, terminal, folder=folder)
    terminal.table([f"{inert(job.variant.name)}: {limit.words}", f"records: {inert(str(folder), longest=500)}"])
    if limit.largest is None:
        raise typer.Exit(1)


def is_lacking(record: RunRecord) -> bool:
    """Whether something that was asked for is not there, and is no extra."""
    missing = (getattr(record, name, None) for name in ("no_quality", "no_tasks"))
    return any(missing) or any(cell.status != "ok" for cell in record.cells)


class RunCommand(TyperCommand):
    """`benchmarker run`, whose options are those of the workload that its first word names."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if shown_help := saved_help(args):
            words = f"{info_name} {args[0]}" if len(args) > 1 else info_name
            return command_with(shown_help, nothing_to_run).make_context(words, args[-1:], parent, **extra)
        workload, rest = _workload_and_rest(args)
        words = f"{info_name} {args[0]}" if len(rest) < len(args) else info_name
        with one_line_errors():
            return command_of(run_workload, workload).make_context(words, rest, parent, **extra)

    @property
    def params(self) -> Any:
        """Those of the default workload: what the documents and a shell's completion list."""
        return command_of(run_workload, _workload_and_rest([])[0]).params

    @params.setter
    def params(self, ignored: Any) -> None:
        """The function that typer reads has none."""


class OptionsAlone(TyperCommand):
    """A command without arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does.

        Raises:
            SpecError: A word belongs to no option, such as the second of two numbers.
        """
        rest = super().parse_args(ctx, args)
        if ctx.args:
            raise SpecError(f"'{ctx.args[0]}' belongs to no option{comma_hint(ctx.args[0])}")
        return rest


def nothing_to_run(**values: object) -> None:
    """Takes the place of a run where help is all that is wanted."""


def run_command() -> None:
    """Measure one variant, and print and save what came out."""


def _workload_and_rest(arguments: Sequence[str]) -> tuple[Workload, list[str]]:
    """The workload that the first word names, or the default; and the arguments behind it.

    A config of another workload needs no word of its own, and neither does a job.
    """
    from benchmarker.schema.registry import DEFAULT_WORKLOAD, WORKLOADS, workload_of

    words = list(arguments)
    with one_line_errors():
        if words and not words[0].startswith("-") and (words[0] in WORKLOADS or len(words[0].split()) == 1):
            return workload_of(words[0]), words[1:]
        return workload_of(_workload_of_file(words) or DEFAULT_WORKLOAD), words


def _workload_of_file(arguments: Sequence[str]) -> str | None:
    """The workload of the config among the arguments; None where there is none, or it cannot be read."""
    from benchmarker.schema.config_io import workload_in

    for position, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag == "--config":
            path = value if equals else next(iter(arguments[position + 1 :]), "")
            return workload_in(Path(path))
    return None


def _arguments() -> list[str]:
    """What followed `python -m benchmarker.run` or `benchmarker run`."""
    arguments = sys.argv[1:]
    return arguments[1:] if arguments[:1] == ["run"] else arguments


def _reproduce(arguments: Sequence[str]) -> str:
    from benchmarker.schema.job import PROGRAM

    return f"{PROGRAM} {shlex.join(arguments)}".strip()


def read_job(arguments: Sequence[str], experiment: ExperimentBase | None = None) -> Any:
    """The job that these arguments of a run ask for, checked and not done; None where they ask for help.

    Args:
        experiment: Content of the config file among them, where it was read already.

    Raises:
        BenchmarkerError: As running it would.
    """
    from benchmarker.schema.job import PROGRAM
    from benchmarker.schema.registry import workload_of

    workload, rest = (
        (workload_of(experiment.workload), list(arguments)) if experiment else _workload_and_rest(arguments)
    )
    answer = command_of(asked_job, workload).main(rest, prog_name=PROGRAM, standalone_mode=False, obj=experiment)
    if answer is None or isinstance(answer, int):
        # Help, which prints, answers with an exit code.
        return None
    job: Job = answer
    return job.model_copy(update={"reproduce": _reproduce(arguments)})


def parse_options(workload: Workload, options: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the values of options for every run of a sweep by their place in the job, and the device.

    Raises:
        SpecError: An option has no such value.
    """
    from benchmarker.cli.run_options import typed_values

    command = command_of(lambda _workload, **values: values, workload)
    values = command.main(list(options), prog_name="benchmarker sweep", standalone_mode=False)
    return typed_values(workload, values), values["device"]


def command_of(function: Callable[..., object], workload: Workload) -> Any:
    """A click command; typer brings its own copy of click, whose types have no public name.

    Args:
        function: Takes the workload, and what was typed by name.
    """
    return command_with(run_help(workload), lambda **values: function(workload, **values))


def command_with(shown_help: RunHelp, function: Callable[..., object]) -> Any:
    """A click command with the options of a workload's run."""
    from benchmarker.cli.run_options import with_options

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(cls=OptionsAlone, context_settings={"allow_extra_args": True})(with_options(function, shown_help))
    return typer.main.get_command(app)


def main() -> None:
    """Entry of `python -m benchmarker.run`."""
    from benchmarker.schema.job import PROGRAM

    print_what_can_be_printed()
    workload, rest = _workload_and_rest(sys.argv[1:])
    with one_line_errors():
        command_of(run_workload, workload)(rest, prog_name=PROGRAM)
