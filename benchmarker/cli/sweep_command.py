"""`benchmarker sweep`: every variant of a config, in rounds of fresh processes."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarker.cli.run_options import parse, typed_values
from benchmarker.core.console import Terminal
from benchmarker.core.errors import ResultsError, SpecError, did_you_mean
from benchmarker.core.tables import plain_line

if TYPE_CHECKING:
    from benchmarker.sweep.request import Options, Settings
    from benchmarker.sweep.sweep_state import Failure
    from benchmarker.sweep.workers import Tools

DISPLAY = ("--quiet", "--verbose")  # Options that affect the output only. A resumed sweep does not keep them.
NOT_PASSED_ON = {
    "--baseline": "--baseline: is a key of the config, and an option of `benchmarker compare`; leave it out",
    "--config": "--config: the config of a sweep has no option before it, and is given already",
    "--job": "--job: `benchmarker run` measures a saved job; a sweep takes a config",
    "--variant": "--variant: the names of variants have no option before them; leave it out",
    "--find-limit": "--find-limit: is an option of `benchmarker run`, for one variant; leave it out",
}
REPORT = (sys.executable, "-m", "benchmarker", "report")
LINE_LENGTH = 200


def sweep(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="YAML file with the variants.")],
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds: processes of each variant.  \\[default: the config's, or 5]")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One round: a first look, without verdicts.")] = False,
    publish: Annotated[bool, typer.Option("--publish", help="Ten rounds, for numbers to be published.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the sweep in the named folder, or the last sweep of this config.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for the records.  \\[default: results/<device>/<subject>/<time>]"),
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds for the entire sweep.")] = None,
    load_timeout: Annotated[float, typer.Option(min=0, help="Seconds for loading a variant.")] = 3600,
    cell_timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds for a cell.  \\[default: ten times its longest time so far]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the variants' order.  \\[default: a random one]")] = None,
    allow_shared: Annotated[
        bool, typer.Option("--allow-shared", help="Keep and flag cells that other programs on GPU or host disturbed.")
    ] = False,
    shared_imports: Annotated[
        bool,
        typer.Option(
            "--shared-imports", help="Import the libraries once per round; each process of the round is a fork."
        ),
    ] = False,
    max_rounds: Annotated[
        int | None,
        typer.Option(
            min=3,
            help="Add rounds, up to this number, until the widest interval is under 4 % of its speed-up.  "
            "\\[default: 10, or none if the config or --rounds gives the number]",
        ),
    ] = None,
    max_time: Annotated[
        float | None, typer.Option(min=0, help="Seconds after which no round is added; requested rounds are all run.")
    ] = None,
    places: Annotated[
        str | None,
        typer.Option(
            metavar="local:0,1|ray",
            help="Workers that measure entire rounds in parallel: GPUs of this host by number, or a Ray cluster.",
        ),
    ] = None,
    runtime_env: Annotated[
        Path | None, typer.Option(help=r"YAML file with Ray's runtime_env.  \[default: the installation of each host]")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and exit.")] = False,
) -> None:
    """Run the variants of a config in rounds, each time in a fresh process, then compare them.

    Names of variants may follow the config (default: all of them), and options that are passed on to every run.

    Example: benchmarker sweep configs/qwen3-4b.yaml int8 gptq --runs 3
    """
    from benchmarker.sweep.request import Settings, rounds_of

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
    if sweep_config(config, context.args, Terminal(quiet="--quiet" in context.args), settings):
        raise typer.Exit(1)


def sweep_config(
    config: Path,
    arguments: Sequence[str],
    terminal: Terminal,
    settings: Settings,
    *,
    tools: Tools | None = None,
    report: Sequence[str] = REPORT,
) -> list[str]:
    """Run a sweep and print its result; return the names of the variants and cells that failed, or `comparison`.

    `tools` and `report`, the command that draws the report, are replaced by tests. Raises KeyboardInterrupt after
    Ctrl-C or SIGTERM, when the finished cells have been compared.
    """
    from benchmarker.sweep.child import SweepTimeoutError
    from benchmarker.sweep.request import make_request, read_config
    from benchmarker.sweep.run_sweep import run_sweep
    from benchmarker.sweep.workers import Tools

    content = read_config(config)
    words, options = split_arguments(arguments, content.experiment.workload)
    request = make_request(content, words, options, settings)
    sweep, stopped = run_sweep(request, terminal, tools or Tools())
    if sweep is None:
        return []
    from benchmarker.report.compare import brief, compare
    from benchmarker.schema.record_io import record_paths

    terminal.pin("")
    is_compared = True
    try:
        terminal.show(brief(compare([sweep.folder])))
    except ResultsError as error:
        is_compared = False
        # Without a record, the reason is the error or the interruption that stopped the sweep.
        if not stopped or record_paths(sweep.folder):
            terminal.note(f"no comparison: {error}")
    # Printed before the report, which may take minutes to draw; a terminated sweep may be killed after seconds.
    terminal.line(f"records: {sweep.folder}")
    failures = sweep.progress.failures
    if stopped or any(failure.fault.error_kind == "disturbed" for failure in failures):
        again = ["benchmarker", "sweep", str(config), "--resume", str(sweep.folder)]
        terminal.line(f"resume with: {shlex.join(again)}")
    if is_compared:
        terminal.line(_draw(sweep.folder, report))
    for failure in failures:
        _print_failure(failure, terminal)
    is_out_of_time = isinstance(stopped, SweepTimeoutError)
    if stopped and not is_out_of_time:
        raise stopped
    return [failure.name for failure in failures] + ["time"] * is_out_of_time + ["comparison"] * (not is_compared)


def split_arguments(arguments: Sequence[str], workload_name: str) -> tuple[list[str], Options]:
    """Return the words that are no options (variants, a folder), and the parsed options for every run."""
    from benchmarker.schema.options import option_names
    from benchmarker.schema.registry import workload_of
    from benchmarker.sweep.request import Options

    workload = workload_of(workload_name)
    takes_value = option_names(workload)
    words: list[str] = []
    text: list[str] = []
    display: list[str] = []
    rest = iter(arguments)
    for word in rest:
        name, equals, _ = word.partition("=")
        if not word.startswith("-"):
            words.append(word)
        elif name in NOT_PASSED_ON:
            raise SpecError(NOT_PASSED_ON[name])
        elif name not in takes_value:
            raise SpecError(f"no option '{name}'{did_you_mean(name, takes_value)}")
        elif name in DISPLAY:
            display.append(word)
        else:
            text += [word, *islice(rest, int(takes_value[name] and not equals))]
    values = parse(workload, text, "benchmarker sweep") or {}
    return words, Options(typed_values(workload, values), values["device"], tuple(text), tuple(display))


def _draw(folder: Path, report: Sequence[str]) -> str:
    """Write the report in a new process; return `report: PAGE`, or `no report: REASON`."""
    page = folder / "report.html"
    arguments = [str(folder), "--output", str(page)]
    try:
        process = subprocess.run(
            [*report, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no report: {error}"
    if process.returncode == 0:
        return f"report: {page}"
    again = shlex.join(["benchmarker", "report", *arguments])
    messages = [line for line in process.stderr.splitlines() if line.strip()] or [f"exit {process.returncode}"]
    return f"no report: {plain_line(messages[-1], longest=LINE_LENGTH)}; try again with: {again}"


def _print_failure(failure: Failure, terminal: Terminal) -> None:
    from benchmarker.schema.record import status_words

    reason = failure.fault.reason
    terminal.note(f"failed: {failure.name}: {status_words(failure.fault.status)}: {reason}")
    if failure.fault.error_kind == "disturbed":
        return
    for line in failure.tail:
        # The child's error message usually is the reason itself.
        if not (line.startswith("error: ") and reason.startswith(line.removeprefix("error: "))):
            terminal.line(f"  | {line[:LINE_LENGTH]}")
    terminal.line(f"  log: {failure.log}")
    terminal.line(f"  alone: {failure.alone}")
