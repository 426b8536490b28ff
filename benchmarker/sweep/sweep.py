"""Every variant of a config, several times, each time in a fresh process; then the comparison.

This parent imports no torch and sleeps while a child measures: a parent that polls in a loop takes a core away from
what it measures. Whatever stops it, the finished cells are on disk, and `--resume` goes on with the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarker.core.console import Terminal
from benchmarker.core.errors import DeviceError, ResultsError
from benchmarker.core.formatting import approximate_duration, slug
from benchmarker.execution.job_file import with_origin
from benchmarker.hardware.host_load import HostGauge
from benchmarker.hardware.monitor import Monitor, find_monitor
from benchmarker.schema.environment import Environment
from benchmarker.schema.job import Job
from benchmarker.schema.registry import workload_of
from benchmarker.sweep.child import SweepTimeoutError
from benchmarker.sweep.child_process import starter_of
from benchmarker.sweep.folder import ReusableCells
from benchmarker.sweep.judging import check_inputs, judge_variants
from benchmarker.sweep.live_table import LiveTable
from benchmarker.sweep.lock import locked
from benchmarker.sweep.open_folder import open_folder, refuse_mixture, sweep_file, write_plan
from benchmarker.sweep.places.order import clear_parcels
from benchmarker.sweep.places.place import Places
from benchmarker.sweep.places.sweep_over_places import (
    check_devices,
    first_visit,
    measure_at_places,
    open_places,
    template_of,
)
from benchmarker.sweep.probe import look_around
from benchmarker.sweep.request import RESULTS, ReadJob, Settings, SweepRequest, read_arguments
from benchmarker.sweep.schedule import Forecast, missing_tasks, plan_lines, without_given_up
from benchmarker.sweep.state import REPORT, RUN, SweepContext, SweepState, now_id
from benchmarker.sweep.stopping import with_more_rounds
from benchmarker.sweep.variant_round import measure

__all__ = ["Dependencies", "Settings", "run_sweep"]


def look_for(job: Job) -> str | None:
    """See whether there is what a job needs, by its workload's own means; see `Dependencies.look_for`."""
    return workload_of(job.workload).look_for(job)


class SayEnding(Protocol):
    """Says how a sweep ended: the comparison of all records in its folder, and what failed."""

    def __call__(self, context: SweepContext, state: SweepState, terminal: Terminal, *, is_whole: bool) -> None: ...


@dataclass(frozen=True)
class Dependencies:
    """Programs and functions that a sweep uses; a test gives quicker ones."""

    run: tuple[str, ...] = RUN
    """Command that starts a child, before its arguments."""
    report: tuple[str, ...] = REPORT
    """Command that draws the report, before its arguments."""
    probe: tuple[str, ...] | None = None
    """Command that prints the environment of a place; None for the place's own program."""
    prepare: tuple[str, ...] | None = None
    """Command that prepares the checkpoints of a host; None for the host's own program."""
    open_places: Callable[[Settings], Places] = open_places
    look_around: Callable[[str], Environment] = look_around
    find_monitor: Callable[[Environment], Monitor | None] = find_monitor
    watch_host: Callable[[int], HostGauge] | None = HostGauge
    look_for: Callable[[Job], str | None] = look_for
    """Sees whether there is what a job needs, such as a model, and returns its hub commit; None for none."""


DEFAULTS = Settings()
REAL = Dependencies()


def run_sweep(
    config: Path,
    arguments: Sequence[str],
    terminal: Terminal,
    settings: Settings = DEFAULTS,
    *,
    read_job: ReadJob,
    say_ending: SayEnding,
    dependencies: Dependencies = REAL,
) -> list[str]:
    """Run the variants, print the comparison, and say what failed.

    Args:
        read_job: Makes a job of a run's options.
        say_ending: Prints the comparison, whatever stopped the sweep.
        arguments: Names of variants (all if there are none), the folder to resume, options for every run.

    Returns:
        What failed, by variant, round and cell.

    Raises:
        BenchmarkerError: The config or an option is wrong, there is no such model, or the folder is another sweep's;
            nothing has run. Or a record could not be saved; what there is was compared first.
        KeyboardInterrupt: Ctrl-C; what was finished is compared first.
    """
    request = read_arguments(config, arguments, settings, read_job=read_job)
    if settings.places:
        # Each host looks at its own inputs.
        check_devices(request)
    else:
        check_inputs(request.jobs.values())
    forecast = Forecast(request.jobs, shared_imports=settings.shared_imports)
    for line in (*request.notes, *plan_lines(request, forecast, settings.places)):
        terminal.line(line)
    if settings.dry_run:
        return []
    if settings.places:
        return _run_at_places(request, settings, terminal, say_ending, dependencies)
    first = next(iter(request.jobs.values()))
    # It is the model of all variants, each of which would say that there is none. What was measured of it before is
    # gone on with all the same.
    commit = _commit_before(request, first) if settings.resume else dependencies.look_for(first)
    surroundings = dependencies.look_around(first.device)
    context = SweepContext(
        request=request,
        settings=settings,
        environment=surroundings,
        folder=request.folder or _new_folder(request, surroundings),
        monitor=dependencies.find_monitor(surroundings),
        deadline_s=_after(settings.timeout_s or None),
        added_until_s=_after(settings.max_time_s),
        sweep=sweep_file(request),
        jobs=planned_jobs(request, surroundings, commit=commit),
        run=dependencies.run,
        report=dependencies.report,
        watch_host=dependencies.watch_host,
        starter=starter_of(workload_of(first.workload), terminal, shared_imports=settings.shared_imports),
    )
    with locked(context.folder):
        state, reusable = SweepState(LiveTable(context.workload)), open_folder(context, forecast, terminal)
        state.profiled |= reusable.profiled
        for (_, variant, position), cell in reusable.finished.items():
            state.live_table.take(variant, position, cell)

        def work() -> None:
            with context.monitor.running() if context.monitor else nullcontext():
                _rounds(context, state, reusable, forecast, terminal)
                extended = context
                while more := with_more_rounds(extended, 1, terminal):
                    _rounds(more, state, reusable, forecast, terminal, first=extended.request.rounds)
                    extended = more
            judge_variants(context, state, terminal)

        return _finish(context, state, terminal, say_ending, work)


def _run_at_places(
    request: SweepRequest, settings: Settings, terminal: Terminal, say_ending: SayEnding, dependencies: Dependencies
) -> list[str]:
    """The same over several cards, or hosts: see `benchmarker.sweep.places`."""
    deadline_s, added_until_s = _after(settings.timeout_s or None), _after(settings.max_time_s)
    first, sweep = next(iter(request.jobs.values())), sweep_file(request)
    template = template_of(
        request,
        settings,
        sweep,
        commit=_commit_before(request, first) if settings.resume else None,
        run=None if dependencies.run == RUN else dependencies.run,
        probe=dependencies.probe,
        prepare=dependencies.prepare,
    )
    places = dependencies.open_places(settings)
    try:
        visited = first_visit(places, template, request, terminal)
        context = SweepContext(
            request=request,
            settings=settings,
            environment=visited.environment,
            folder=request.folder or _new_folder(request, visited.environment),
            monitor=None,
            deadline_s=deadline_s,
            added_until_s=added_until_s,
            sweep=sweep,
            jobs=visited.jobs,
            report=dependencies.report,
        )
        with locked(context.folder):
            refuse_mixture(context)
            write_plan(context)
            state = SweepState(LiveTable(context.workload))

            def work() -> None:
                try:
                    measure_at_places(context, state, places, template, visited=visited, terminal=terminal)
                finally:
                    places.stop()
                    clear_parcels(context.folder)

            return _finish(context, state, terminal, say_ending, work)
    finally:
        places.stop()


def _after(seconds: float | None) -> float | None:
    """So long from now, on the monotonic clock."""
    return None if seconds is None else time.monotonic() + seconds


def planned_jobs(request: SweepRequest, surroundings: Environment, *, commit: str | None) -> dict[str, Job]:
    """The jobs with what their processes are to find.

    Args:
        commit: Hub commit of the model; None where it is not known.
    """
    return {
        name: with_origin(job, surroundings, config=request.config, config_sha256=request.config_sha256, commit=commit)
        for name, job in request.jobs.items()
    }


def _commit_before(request: SweepRequest, first: Job) -> str | None:
    """Hub commit that the folder's sweep began with; None where it did not know it."""
    is_same = workload_of(first.workload).is_same_subject
    commits = [job.origin.commit for job in request.saved if job.origin and is_same(job, first)]
    return next((commit for commit in commits if commit), None)


def _new_folder(request: SweepRequest, surroundings: Environment) -> Path:
    job = next(iter(request.jobs.values()))
    title = workload_of(job.workload).title(job)
    return RESULTS / slug(surroundings.device.name.lower()) / slug(title.lower()) / now_id()


def _finish(
    context: SweepContext, state: SweepState, terminal: Terminal, say_ending: SayEnding, work: Callable[[], None]
) -> list[str]:
    """Do the work in the folder, which is ours alone, and say what came of it, whatever stopped it."""
    terminal.line(f"records: {context.folder}")
    stopped: BaseException | None = None
    try:
        with closing(context.starter):
            work()
    except (KeyboardInterrupt, ResultsError, DeviceError) as error:
        stopped = error
    except SweepTimeoutError:
        terminal.line(f"the time is up (--timeout {context.settings.timeout_s:g})")
        state.out_of_time = True
    say_ending(context, state, terminal, is_whole=not stopped and not state.out_of_time)
    if stopped:
        raise stopped
    return [failure.what for failure in state.failures] + ["time"] * state.out_of_time


def _rounds(
    context: SweepContext,
    state: SweepState,
    reusable: ReusableCells,
    forecast: Forecast,
    terminal: Terminal,
    *,
    first: int = 0,
) -> None:
    """Measure every task; what was given up in an earlier round is not tried again.

    Args:
        first: Round to begin with.
    """
    tasks = [task for task in missing_tasks(context.request, reusable.finished) if task.round >= first]
    tasks = without_given_up(tasks, state.given_up)
    begun = 0
    while tasks:
        task, begun = tasks[0], begun + 1
        position = f"[round {task.round + 1}/{context.request.rounds}, {begun} of {begun + len(tasks) - 1}]"
        where = f"{position} {task.variant} ({approximate_duration(forecast.seconds(tasks))} left)"
        terminal.line(where)
        terminal.pin(f"\n{_standing(context, state, running=task.variant)}\n{where}")
        started = time.monotonic()
        measure(context, state, terminal, variant=task.variant, round_number=task.round, cells=task.cells)
        forecast.learn(task, time.monotonic() - started)
        tasks = without_given_up(tasks[1:], state.given_up)
        if not terminal.can_pin and tasks and tasks[0].round > task.round:
            terminal.line(f"after {task.round + 1} of {context.request.rounds} rounds:\n{_standing(context, state)}")
    # What follows runs none of them: no variant is under way, and no time is left.
    terminal.pin(f"\n{_standing(context, state)}")


def _standing(context: SweepContext, state: SweepState, *, running: str | None = None) -> str:
    """What is known so far."""
    jobs = context.request.jobs
    shapes = [context.workload.point_text(point) for point in next(iter(jobs.values())).grid.points()]
    return state.live_table.table(list(jobs), shapes, running=running)
