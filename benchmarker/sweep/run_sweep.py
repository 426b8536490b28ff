"""Every variant of a config in several rounds, each time in a fresh process.

The process of a sweep imports no torch, and its threads sleep while a child measures: a thread that polls would take a
core away from the measurement. Whatever ends a sweep, the finished cells are on disk, and `--resume` measures the rest.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarker.core.console import Terminal
from benchmarker.core.errors import DeviceError, ResultsError, SpecError
from benchmarker.core.formatting import approximate_duration, plural, slug
from benchmarker.execution.job_file import with_origin
from benchmarker.schema.job import Job
from benchmarker.schema.record import Environment
from benchmarker.sweep.folder import ReusableCells, SweepFile, find_reusable, locked, open_folder, write_sweep_file
from benchmarker.sweep.judge_quality import check_inputs, missing_judgements
from benchmarker.sweep.live_table import LiveTable
from benchmarker.sweep.loop import Loop, SweepTimeoutError
from benchmarker.sweep.request import RESULTS, Settings, SweepRequest
from benchmarker.sweep.stopping import more_rounds
from benchmarker.sweep.sweep_plan import RAY, Forecast, Schedule, Task, local_numbers, missing_tasks, plan_lines
from benchmarker.sweep.sweep_state import Failure, Progress, Sweep, now_id
from benchmarker.sweep.workers.base import Pool, Round, Session, Tools, check_devices
from benchmarker.sweep.workers.local import LocalPool


@dataclass(frozen=True)
class SweepResult:
    """End of a sweep whose folder was opened."""

    folder: Path
    failures: tuple[Failure, ...]
    out_of_time: bool = False
    stopped: BaseException | None = None

    @property
    def failed(self) -> list[str]:
        """Names of the failures."""
        return [failure.name for failure in self.failures] + ["time"] * self.out_of_time


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
    loop: Loop | None = None
    try:
        environment, commit = pool.prepare(request, terminal.line)
        file = _sweep_file(request)
        sweep = Sweep(
            jobs=_planned_jobs(request, environment, commit=commit or _earlier_commit(request)),
            folder=request.folder or _new_folder(request, environment),
            started_at=file.started_at,
            settings=settings,
            display=request.display,
            run=tools.run,
        )
        with locked(sweep.folder):
            open_folder(
                sweep.folder,
                file,
                sweep.jobs,
                before=request.before,
                saved=request.saved,
                resume=settings.resume,
            )
            session = Session(sweep, Progress(LiveTable(sweep.workload)), Schedule([], forecast, rounds=request.rounds))
            terminal.line(f"records: {sweep.folder}")
            deadline_s = started + settings.timeout_s if settings.timeout_s else None
            loop = Loop(session, pool, terminal, deadline_s=deadline_s)
            stopped: BaseException | None = None
            try:
                pool.begin(session)
                is_watched = tools.find_monitor(environment) is not None
                _measure(request, file, session, loop, pool, terminal, started=started, is_watched=is_watched)
            except (KeyboardInterrupt, ResultsError, DeviceError, SweepTimeoutError) as error:
                stopped = error
            # The workers end, and save what they have, before the lock is given up.
            pool.stop()
            loop.print_rest()
    finally:
        pool.stop()
    out_of_time = isinstance(stopped, SweepTimeoutError)
    if out_of_time:
        terminal.line(f"the time is up (--timeout {settings.timeout_s:g})")
    return SweepResult(
        sweep.folder, tuple(session.progress.failures), out_of_time, stopped=None if out_of_time else stopped
    )


def _pool(settings: Settings, tools: Tools) -> Pool:
    numbers = local_numbers(settings.places) if settings.places else []
    if numbers is not None:
        if settings.runtime_env:
            raise SpecError("--runtime-env goes with --places ray")
        return LocalPool(numbers, tools)
    from benchmarker.sweep.workers.ray_pool import RayPool

    return RayPool(settings.runtime_env, tools)


def _measure(
    request: SweepRequest,
    file: SweepFile,
    session: Session,
    loop: Loop,
    pool: Pool,
    terminal: Terminal,
    *,
    started: float,
    is_watched: bool,
) -> None:
    """Measure the missing rounds, then add rounds while an interval is wide, then judge the quality."""
    sweep, schedule, settings = session.sweep, session.schedule, request.settings
    reusable = find_reusable(
        sweep.folder,
        sweep.jobs,
        sweep.keys(),
        rounds=request.rounds,
        cards={worker.card for worker in pool.workers() if worker.card or not worker.name},
        is_watched=is_watched,
    )
    tasks = missing_tasks(sweep.jobs, range(request.rounds), request.seed, finished=reusable.finished)
    _take_in(reusable, session, tasks, request, terminal)
    schedule.add(tasks, rounds=request.rounds)
    measuring_since = time.monotonic()
    loop.run(_rounds(tasks, reusable))
    rounds = request.rounds
    while (
        more := more_rounds(
            sweep,
            request.baseline,
            rounds,
            request.max_rounds,
            terminal,
            count=max(1, len(pool.workers())),
            is_late=settings.max_time_s is not None and time.monotonic() > started + settings.max_time_s,
        )
    ) > rounds:
        write_sweep_file(sweep.folder, file.model_copy(update={"rounds": more}))
        added = missing_tasks(sweep.jobs, range(rounds, more), request.seed, finished=reusable.finished)
        schedule.add(added, rounds=more)
        loop.run(_rounds(added, reusable))
        rounds = more
    if settings.places and loop.rounds_of:
        each = ", ".join(f"{name}: {count}" for name, count in sorted(loop.rounds_of.items(), key=str))
        measured = plural(sum(loop.rounds_of.values()), "round", "rounds")
        terminal.line(f"{measured} took {time.monotonic() - measuring_since:.0f} s ({each})")
    terminal.pin(f"\n{loop.table()}")
    loop.run(missing_judgements(sweep))


def _take_in(
    reusable: ReusableCells, session: Session, tasks: list[Task], request: SweepRequest, terminal: Terminal
) -> None:
    """Print the state of a resumed folder, and put its cells into the live table."""
    for note in reusable.notes:
        terminal.line(note)
    if request.settings.resume:
        cells = request.rounds * sum(len(job.grid.points()) for job in session.sweep.jobs.values())
        forecast = ""
        if reusable.finished and tasks:
            forecast = f"; first guess: {approximate_duration(session.schedule.forecast.seconds(tasks))} to go"
        terminal.line(f"{len(reusable.finished)} of {cells} cells are there already{forecast}")
    session.progress.profiled |= reusable.profiled
    for (_, variant, position), cell in reusable.finished.items():
        session.progress.live_table.add(variant, position, cell)


def _rounds(tasks: list[Task], reusable: ReusableCells) -> list[Round]:
    numbers = dict.fromkeys(task.round for task in tasks)
    return [
        Round(
            number,
            tuple(task for task in tasks if task.round == number),
            is_bound=number in reusable.cards,
            card=reusable.cards.get(number),
        )
        for number in numbers
    ]


def _planned_jobs(request: SweepRequest, environment: Environment, *, commit: str | None) -> Mapping[str, Job]:
    return {
        name: with_origin(job, environment, config=request.config, config_sha256=request.config_sha256, commit=commit)
        for name, job in request.jobs.items()
    }


def _earlier_commit(request: SweepRequest) -> str | None:
    """Return the hub commit that the folder's sweep began with; None for a new sweep or an unknown commit."""
    first = next(iter(request.jobs.values()))
    commits = [job.origin.commit for job in request.saved if job.origin and job.source == first.source]
    return next((commit for commit in commits if commit), None)


def _new_folder(request: SweepRequest, environment: Environment) -> Path:
    job = next(iter(request.jobs.values()))
    return RESULTS / slug(environment.device.name.lower()) / slug(job.title.lower()) / now_id()


def _sweep_file(request: SweepRequest) -> SweepFile:
    """Return the file for the folder; a resumed sweep keeps the time of its beginning."""
    file = SweepFile(
        config=str(request.config),
        arguments=request.arguments,
        variants=tuple(request.jobs),
        rounds=request.rounds,
        max_rounds=request.max_rounds,
        seed=request.seed,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        baseline=request.baseline,
    )
    if request.before is None:
        return file
    return file.model_copy(update={"config": request.before.config, "started_at": request.before.started_at})
