"""Every variant of a config in several rounds, each time in a fresh process.

The process of a sweep imports no torch, and its threads sleep while a child measures: a thread that polls would take a
core away from the measurement. Whatever ends a sweep, the finished cells are on disk, and `--resume` measures the rest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarker.core.console import Terminal
from benchmarker.core.errors import DeviceError, ResultsError, SpecError
from benchmarker.core.formatting import approximate_duration, plural, slug
from benchmarker.execution.jobs import with_origin
from benchmarker.schema.environment import Environment
from benchmarker.schema.registry import workload_of
from benchmarker.sweep.folder import ReusableCells, find_reusable, locked, open_folder, write_sweep_file
from benchmarker.sweep.interrupt import SweepTimeoutError
from benchmarker.sweep.interval_rule import more_rounds
from benchmarker.sweep.judge_quality import check_inputs, missing_judgements
from benchmarker.sweep.loop import Loop
from benchmarker.sweep.request import RESULTS, Settings, SweepRequest
from benchmarker.sweep.sweep_plan import RAY, Forecast, Schedule, Task, local_numbers, missing_tasks, plan_lines
from benchmarker.sweep.sweep_state import Failure, LiveTable, Progress, Sweep, now_id
from benchmarker.sweep.workers.base import Pool, Round, Tools, check_devices
from benchmarker.sweep.workers.local import LocalPool


@dataclass(frozen=True)
class SweepResult:
    folder: Path
    failures: Sequence[Failure]
    stopped: BaseException | None

    @property
    def is_out_of_time(self) -> bool:
        return isinstance(self.stopped, SweepTimeoutError)


def run_sweep(request: SweepRequest, terminal: Terminal, tools: Tools) -> SweepResult | None:
    """Run the variants and save their records; None for a dry run."""
    settings, started = request.settings, time.monotonic()
    if settings.places:
        check_devices(request.jobs.values())
    if settings.places != RAY:
        check_inputs(request.jobs.values())
    forecast = Forecast(request.jobs, shared_imports=settings.shared_imports)
    for line in (*request.notes, *plan_lines(request, forecast)):
        terminal.line(line)
    if settings.dry_run:
        return None
    pool = _pool(settings, tools)
    try:
        environment, commit = pool.prepare(request, terminal.line)
        sweep = _sweep(request, environment, tools, forecast, commit=commit or _earlier_commit(request))
        with locked(sweep.folder):
            open_folder(request, sweep.folder, sweep.jobs)
            terminal.line(f"records: {sweep.folder}")
            deadline_s = started + settings.timeout_s if settings.timeout_s else None
            loop = Loop(sweep, pool, terminal, deadline_s=deadline_s)
            stopped: BaseException | None = None
            try:
                pool.begin(sweep)
                is_watched = tools.find_monitor(environment) is not None
                _measure(request, sweep, loop, pool, terminal, started=started, is_watched=is_watched)
            except (KeyboardInterrupt, ResultsError, DeviceError, SweepTimeoutError) as error:
                stopped = error
            # The workers end, and save what they have, before the lock is given up.
            pool.stop()
            loop.print_rest()
    finally:
        pool.stop()
    result = SweepResult(sweep.folder, sweep.progress.failures, stopped)
    if result.is_out_of_time:
        terminal.line(f"the time is up (--timeout {settings.timeout_s:g})")
    return result


def _pool(settings: Settings, tools: Tools) -> Pool:
    numbers = local_numbers(settings.places) if settings.places else []
    if numbers is not None:
        if settings.runtime_env:
            raise SpecError("--runtime-env goes with --places ray")
        return LocalPool(numbers, tools)
    from benchmarker.sweep.workers.ray_pool import RayPool

    return RayPool(settings.runtime_env, tools)


def _sweep(
    request: SweepRequest, environment: Environment, tools: Tools, forecast: Forecast, *, commit: str | None
) -> Sweep:
    config, sha256 = request.config.path, request.config_sha256
    workload = workload_of(request.config.experiment.workload)
    title = workload.title(next(iter(request.jobs.values())))
    return Sweep(
        jobs={
            name: with_origin(job, environment, config=config, config_sha256=sha256, commit=commit)
            for name, job in request.jobs.items()
        },
        folder=request.folder or RESULTS / slug(environment.device.name.lower()) / slug(title.lower()) / now_id(),
        started_at=request.file.started_at,
        settings=request.settings,
        progress=Progress(LiveTable(workload)),
        schedule=Schedule([], forecast, rounds=request.file.rounds),
        display=request.display,
        run=tools.run,
    )


def _earlier_commit(request: SweepRequest) -> str | None:
    """Return the hub commit that the folder's sweep began with; None for a new sweep or an unknown commit."""
    first = next(iter(request.jobs.values()))
    commits = [job.origin.commit for job in request.saved if job.origin and job.source == first.source]
    return next((commit for commit in commits if commit), None)


def _measure(
    request: SweepRequest,
    sweep: Sweep,
    loop: Loop,
    pool: Pool,
    terminal: Terminal,
    *,
    started: float,
    is_watched: bool,
) -> None:
    """Measure the missing rounds, then add rounds while an interval is wide, then judge the quality."""
    file, settings, rounds = request.file, request.settings, request.file.rounds
    cards = {worker.card for worker in pool.workers() if worker.card or not worker.name}
    reusable = find_reusable(sweep, rounds=rounds, cards=cards, is_watched=is_watched)
    tasks = missing_tasks(sweep.jobs, range(rounds), file.seed, finished=reusable.finished)
    _take_in(reusable, sweep, tasks, request, terminal)
    measuring_since = time.monotonic()
    while True:
        sweep.schedule.add(tasks, rounds=rounds)
        loop.run(_rounds(tasks, reusable))
        is_late = settings.max_time_s is not None and time.monotonic() > started + settings.max_time_s
        count = max(1, len(pool.workers()))
        more = more_rounds(sweep, file.baseline, rounds, file.max_rounds, terminal, count=count, is_late=is_late)
        if more == rounds:
            break
        write_sweep_file(sweep.folder, file.model_copy(update={"rounds": more}))
        tasks = missing_tasks(sweep.jobs, range(rounds, more), file.seed, finished=reusable.finished)
        rounds = more
    if settings.places and loop.rounds_of:
        each = ", ".join(f"{name}: {count}" for name, count in sorted(loop.rounds_of.items(), key=str))
        measured = plural(sum(loop.rounds_of.values()), "round", "rounds")
        terminal.line(f"{measured} took {time.monotonic() - measuring_since:.0f} s ({each})")
    terminal.pin(f"\n{loop.table()}")
    loop.run(missing_judgements(sweep))


def _take_in(
    reusable: ReusableCells, sweep: Sweep, tasks: list[Task], request: SweepRequest, terminal: Terminal
) -> None:
    """Print the state of a resumed folder, and put its cells into the live table."""
    for note in reusable.notes:
        terminal.line(note)
    if request.settings.resume:
        cells = request.file.rounds * sum(len(job.grid.points()) for job in sweep.jobs.values())
        forecast = ""
        if reusable.finished and tasks:
            forecast = f"; first guess: {approximate_duration(sweep.schedule.forecast.seconds(tasks))} to go"
        terminal.line(f"{len(reusable.finished)} of {cells} cells are there already{forecast}")
    sweep.progress.profiled |= reusable.profiled
    for (_, variant, position), cell in reusable.finished.items():
        sweep.progress.live_table.add(variant, position, cell)


def _rounds(tasks: list[Task], reusable: ReusableCells) -> list[Round]:
    return [
        Round(
            number,
            tuple(task for task in tasks if task.round == number),
            is_bound=number in reusable.cards,
            card=reusable.cards.get(number),
        )
        for number in dict.fromkeys(task.round for task in tasks)
    ]
