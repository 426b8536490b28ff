"""The folder of a sweep at its beginning: what is there already, and what is asked, written down."""

from __future__ import annotations

from datetime import UTC, datetime

from benchmarker.core.console import Terminal
from benchmarker.core.errors import ResultsError
from benchmarker.core.formatting import approximate_duration
from benchmarker.execution.job_file import is_job_file, refuse_changed, write_job
from benchmarker.sweep.folder import ReusableCells, SweepFile, find_reusable, write_sweep_file
from benchmarker.sweep.request import SweepRequest
from benchmarker.sweep.schedule import Forecast, missing_tasks
from benchmarker.sweep.state import SweepContext


def open_folder(context: SweepContext, forecast: Forecast, terminal: Terminal) -> ReusableCells:
    """Look through what is there, and write down what is asked.

    Raises:
        ResultsError: There is a sweep already, which nobody asked to resume.
    """
    request = context.request
    refuse_mixture(context)
    reusable = find_reusable(
        context.folder,
        request.jobs,
        context.keys(),
        rounds=request.rounds,
        card=context.environment.device.uuid,
        is_watched=context.monitor is not None,
    )
    for note in reusable.notes:
        terminal.line(note)
    if context.settings.resume:
        cells = request.rounds * sum(len(job.grid.points()) for job in request.jobs.values())
        tasks = missing_tasks(request, reusable.finished)
        to_go = (
            f"; by a first guess {approximate_duration(forecast.seconds(tasks))} to go"
            if reusable.finished and tasks
            else ""
        )
        terminal.line(f"{len(reusable.finished)} of {cells} cells are there already{to_go}")
    write_plan(context)
    return reusable


def refuse_mixture(context: SweepContext) -> None:
    """Refuse a folder with records that would stand beside those to come.

    Raises:
        ResultsError: There is a sweep already, which nobody asked to resume; or it is of something else.
    """
    if not context.settings.resume and any(not is_job_file(path) for path in context.folder.glob("*.json")):
        raise ResultsError(
            f"{context.folder}: there are records already; add --resume to go on with that sweep, "
            "or choose another folder with --output"
        )
    refuse_changed(context.request.saved, list(context.jobs.values()))


def write_plan(context: SweepContext) -> None:
    """Write down what is asked."""
    request = context.request
    if context.sweep != request.before:
        write_sweep_file(context.folder, context.sweep)
    # After the file that makes this a sweep's folder: one that was killed in between is gone on with from its config.
    for job in context.jobs.values():
        if job not in request.saved:
            write_job(job, context.folder)


def sweep_file(request: SweepRequest) -> SweepFile:
    """For a sweep that goes on, when it began and what it was asked last: going on again goes on with that."""
    if request.before:
        return request.before.model_copy(
            update={
                "rounds": request.rounds,
                "max_rounds": request.max_rounds,
                "arguments": request.arguments,
                "seed": request.seed,
                "baseline": request.baseline,
            }
        )
    return SweepFile(
        config=str(request.config),
        arguments=request.arguments,
        rounds=request.rounds,
        max_rounds=request.max_rounds,
        seed=request.seed,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        baseline=request.baseline,
    )
