"""What a sweep says at its end: the comparison, and what failed."""

from __future__ import annotations

import shlex
import subprocess

from benchmarker.core.console import Terminal
from benchmarker.core.errors import ResultsError
from benchmarker.core.tables import plain_line
from benchmarker.report.brief import brief
from benchmarker.report.compare import Comparison, compare
from benchmarker.schema.status_words import status_words
from benchmarker.sweep.state import Failure, SweepContext, SweepState

LINE_LENGTH = 200
REPORT_NAME = "report.html"
REPORT_LIMIT_S = 300.0


def say_ending(context: SweepContext, state: SweepState, terminal: Terminal, *, is_whole: bool) -> None:
    """Print the comparison of all records in the folder, then where they and the report are, and what failed."""
    terminal.pin("")
    comparison = _compare(context, terminal)
    terminal.line(f"records: {context.folder}")
    if comparison:
        terminal.line(_draw(context))
    for failure in state.failures:
        _say_failure(failure, terminal)
    if not is_whole:
        again = ["benchmarker", "sweep", str(context.request.config), "--resume", str(context.folder)]
        terminal.line(f"go on with: {shlex.join(again)}")


def _compare(context: SweepContext, terminal: Terminal) -> Comparison | None:
    """Print the comparison, and return it; None, and the reason is printed, where there is none."""
    try:
        comparison = compare([context.folder])
    except ResultsError as error:
        terminal.line(f"no comparison: {error}")
        return None
    terminal.show(brief(comparison))
    return comparison


def _draw(context: SweepContext) -> str:
    """Write the report, and say where it is or why there is none.

    In a process of its own: whatever goes wrong with a drawing, what was measured is safe and the sweep did its work.
    """
    page = context.folder / REPORT_NAME
    command = [*context.report, str(context.folder), "--output", str(page)]
    try:
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=REPORT_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no report: {error}"
    if process.returncode == 0:
        return f"report: {page}"
    again = ["benchmarker", "report", *command[len(context.report) :]]
    messages = [line for line in process.stderr.splitlines() if line.strip()] or [f"it ended with {process.returncode}"]
    return f"no report: {plain_line(messages[-1], longest=LINE_LENGTH)}; again with: {shlex.join(again)}"


def _say_failure(failure: Failure, terminal: Terminal) -> None:
    reason = failure.fault.reason
    terminal.line(f"failed: {failure.what}: {status_words(failure.fault.status)}: {reason}")
    for line in failure.tail:
        # The line that ended it is the reason once more.
        if not (line.startswith("error: ") and reason.startswith(line.removeprefix("error: "))):
            terminal.line(f"  | {line[:LINE_LENGTH]}")
    terminal.line(f"  log: {failure.log}")
    terminal.line(f"  alone: {failure.alone}")
