"""The folder of a sweep at its beginning: what is there already, and what is asked, written down."""

from __future__ import annotations

from datetime import UTC, datetime

from benchmarker.core.console import Terminal
from benchmarker.core.errors import ResultsError
from benchmarker.core.words import duration_words
from benchmarker.execution.job_file import is_job_file, refuse_changed, write_job
from benchmarker.sweep.folder import Stock, SweepFile, take_stock, write_sweep_file
from benchmarker.sweep.request import Asked
from benchmarker.sweep.schedule import Forecast, missing_tasks
from benchmarker.sweep.state import Site


def open_folder(site: Site, forecast: Forecast, terminal: Terminal) -> Stock:
    """Look through what is there, and write down what is asked.

    Raises:
        ResultsError: There is a sweep already, which nobody asked to resume.
    """
    request = site.asked
    refuse_mixture(site)
    stock = take_stock(
        site.folder,
        request.jobs,
        site.keys(),
        rounds=request.rounds,
        card=site.environment.device.uuid,
        is_watched=site.monitor is not None,
    )
    for note in stock.notes:
        terminal.line(note)
    if site.settings.resume:
        cells = request.rounds * sum(len(job.grid.points()) for job in request.jobs.values())
        tasks = missing_tasks(request, stock.finished)
        to_go = (
            f"; by a first guess {duration_words(forecast.seconds(tasks))} to go" if stock.finished and tasks else ""
        )
        terminal.line(f"{len(stock.finished)} of {cells} cells are there already{to_go}")
    write_plan(site)
    return stock


def refuse_mixture(site: Site) -> None:
    """Refuse a folder with records that would stand beside those to come.

    Raises:
        ResultsError: There is a sweep already, which nobody asked to resume; or it is of something else.
    """
    if not site.settings.resume and any(not is_job_file(path) for path in site.folder.glob("*.json")):
        raise ResultsError(
            f"{site.folder}: there are records already; add --resume to go on with that sweep, "
            "or choose another folder with --output"
        )
    refuse_changed(site.asked.saved, list(site.jobs.values()))


def write_plan(site: Site) -> None:
    """Write down what is asked."""
    request = site.asked
    if site.sweep != request.before:
        write_sweep_file(site.folder, site.sweep)
    # After the file that makes this a sweep's folder: one that was killed in between is gone on with from its config.
    for job in site.jobs.values():
        if job not in request.saved:
            write_job(job, site.folder)


def sweep_file(request: Asked) -> SweepFile:
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
