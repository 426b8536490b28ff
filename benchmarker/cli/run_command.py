"""Measure one variant in this process and write one record: `benchmarker run` and `python -m benchmarker.run`.

A process measures one variant: memory marks are clean, no compiler state is left over from another variant, and a crash
costs one variant. The first word may name a workload; the options are then those of that workload.
"""

from __future__ import annotations

import gc
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from benchmarker.cli.run_options import command_of, run_help, saved_help, typed_values
from benchmarker.core.console import Terminal, one_line_errors, print_what_can_be_printed, quiet_libraries
from benchmarker.core.errors import SpecError, report_library_conflicts
from benchmarker.core.formatting import slug
from benchmarker.core.process import end_with_parent, no_garbage_collection, sigterm_interrupts
from benchmarker.core.tables import plain_line
from benchmarker.schema.registry import DEFAULT_WORKLOAD, WORKLOADS, workload_of

if TYPE_CHECKING:
    from benchmarker.execution.single_run import Run
    from benchmarker.schema.job import Job
    from benchmarker.workloads.base import Workload

WITH_JOB = ("--job", "--part", "--device", "--output", "--quiet", "--verbose")
"""Options that are allowed together with --job, whose file contains all others."""


class RunCommand(TyperCommand):
    """`benchmarker run`, with the options of the workload that its first word names."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of a command that calls `measure_variant` with the values of the workload's options.

        The workload is the first word, else that of the config, else text generation.
        """
        words = list(args)
        # An unknown argument of one word is a misspelled workload; with spaces, it belongs to no option.
        is_named = words and not words[0].startswith("-") and (words[0] in WORKLOADS or len(words[0].split()) == 1)
        name = words.pop(0).replace("-", "_") if is_named else _workload_of_config(words) or DEFAULT_WORKLOAD
        if content := saved_help(name, words):
            command = command_of(content, dict)
        else:
            workload = workload_of(name)
            command = command_of(run_help(workload), partial(measure_variant, workload))
        return command.make_context(f"{info_name} {name}" if is_named else info_name, words, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        return ctx.command.invoke(ctx)

    @property
    def params(self) -> Any:
        """Options of the default workload, for the documentation and a shell's completion."""
        return command_of(run_help(workload_of(DEFAULT_WORKLOAD)), dict).params

    @params.setter
    def params(self, ignored: Any) -> None:
        """Ignore typer's own assignment: the options come from the workload, not from the signature of `run`."""


def run() -> None:
    """Measure one variant, print the result and save its record."""


def main() -> None:
    from benchmarker.schema.job import PROGRAM

    print_what_can_be_printed()
    with one_line_errors():
        RunCommand(PROGRAM).main(prog_name=PROGRAM)


def _workload_of_config(arguments: Sequence[str]) -> str | None:
    for position, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag == "--config":
            from benchmarker.schema.config_io import workload_in

            return workload_in(Path(value if equals else next(iter(arguments[position + 1 :]), "")))
    return None


def measure_variant(workload: Workload, values: Mapping[str, Any]) -> None:
    """Make a job from the option values, measure it, save its record and print the result."""
    with one_line_errors():
        # Imported here, because the classes of a job take as long as the rest of `benchmarker --help`.
        from benchmarker.execution.jobs import make_job
        from benchmarker.schema.record_io import LOCK_OWNER

        if values["job_file"]:
            job = _saved_job(values)
        else:
            given = {name: values[name] for name in ("config", "variant", "device", "output")}
            job = make_job(typed_values(workload, values), workload=workload.name, reproduce=_command_line(), **given)
        if values["find_limit"]:
            _print_limit(job, values)
            return
        with _prepared_run(job, values) as run:
            if not job.part and (run.path.parent / LOCK_OWNER).exists():
                from benchmarker.sweep.resume import locked

                # Raises ResultsError if a sweep is writing to the folder.
                with locked(run.path.parent):
                    pass
            record = run.execute()
            if not job.part:
                from benchmarker.report.run_summary import print_result

                print_result(record, run.path, run.terminal, workload)
    is_unjudged = any(getattr(record, name, None) for name in ("no_quality", "no_tasks"))
    if is_unjudged or any(cell.status != "ok" for cell in record.cells):
        raise typer.Exit(1)


@contextmanager
def _prepared_run(job: Job, values: Mapping[str, Any]) -> Iterator[Run]:
    """Import the libraries and yield the run of a job. Until the context ends, only `Terminal` prints."""
    from benchmarker.hardware.monitor import Surroundings

    surroundings = None if job.part else Surroundings()
    if job.part:
        end_with_parent()
    with quiet_libraries(verbose=values["verbose"]) as streams, nullcontext() if job.part else sigterm_interrupts():
        # Libraries print while they are imported, too. The objects that they create stay: repeated garbage
        # collections over them take a sixth of the import time.
        with no_garbage_collection(), report_library_conflicts():
            from benchmarker.execution.single_run import Run

            gc.freeze()
        yield Run(job, Terminal(quiet=values["quiet"], verbose=values["verbose"], streams=streams), surroundings)


def _saved_job(values: Mapping[str, Any]) -> Job:
    from benchmarker.execution.jobs import read_job_file
    from benchmarker.schema.job import Part

    context, path = values["context"], values["job_file"]
    if values["find_limit"]:
        raise SpecError("--find-limit: a saved job contains its cells; leave --job out")
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
    changes = {"part": None, "output": values["output"], "reproduce": _command_line()}
    return job.model_copy(update=changes | ({"device": values["device"]} if "--device" in typed else {}))


def _command_line() -> str:
    from benchmarker.schema.job import PROGRAM

    arguments = sys.argv[1:]
    return f"{PROGRAM} {shlex.join(arguments[1:] if arguments[:1] == ['run'] else arguments)}".strip()


def _print_limit(job: Job, values: Mapping[str, Any]) -> None:
    from benchmarker.sweep.find_limit import find_limit
    from benchmarker.sweep.sweep_state import now_id

    title = slug(job.title.lower())
    folder = job.output or Path("results") / "limits" / title / f"{slug(job.variant.name)}-{now_id()}"
    terminal = Terminal(quiet=values["quiet"], verbose=values["verbose"])
    limit = find_limit(job, values["find_limit"], terminal, folder=folder)
    place = plain_line(str(folder), longest=500)
    terminal.show([f"{plain_line(job.variant.name)}: {limit.words}", f"records: {place}"])
    if limit.largest is None:
        raise typer.Exit(1)
