"""Every variant of a config in several rounds, each time in a fresh process.

The process of a sweep imports no torch, and its threads sleep while a child measures: a thread that polls would take a
core away from the measurement. Whatever ends a sweep, the finished cells are on disk, and `--resume` measures the rest.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from benchmarker.comparison.rows import grouped
from benchmarker.core.console import Terminal
from benchmarker.core.errors import DeviceError, ResultsError, SpecError
from benchmarker.core.formatting import approximate_duration, plural, slug
from benchmarker.core.process import sigterm_interrupts
from benchmarker.execution.jobs import with_origin
from benchmarker.schema.record import Environment, Missing
from benchmarker.schema.record_io import SWEEP_FILE, read_order, write_json
from benchmarker.schema.registry import workload_of
from benchmarker.sweep import sweep_plan
from benchmarker.sweep.child import SweepTimeoutError
from benchmarker.sweep.judge_quality import check_inputs, missing_judgements
from benchmarker.sweep.ray_workers import RayPool
from benchmarker.sweep.request import RESULTS, Settings, SweepRequest, check_models
from benchmarker.sweep.resume import ReusableCells, SweepFile, find_reusable, locked, open_folder
from benchmarker.sweep.sweep_plan import Schedule, Task, enough_rounds, local_numbers, missing_tasks, without_given_up
from benchmarker.sweep.sweep_state import Failure, LiveTable, Progress, Sweep, now_id
from benchmarker.sweep.workers import Ended, Line, LocalPool, Pool, Round, Tools, Work, Worker, check_devices

TRIES = 3
"""Maximum number of attempts at a round or quality measurement whose worker died."""
LOSSES = 2
"""Consecutive deaths after which a worker gets no more work."""
TICK_S = 1.0


def run_sweep(
    request: SweepRequest, terminal: Terminal, tools: Tools
) -> tuple[Sweep, BaseException | None] | tuple[None, None]:
    """Run a sweep; return it, and the interruption or error that ended it early. A dry run returns (None, None)."""
    settings, started = request.settings, time.monotonic()
    if settings.places:
        check_devices(request.jobs.values())
    if settings.places != sweep_plan.RAY:
        check_inputs(request.jobs.values())
        if not settings.resume:
            check_models(request.jobs.values())
    # On Ray, the load of the measuring hosts is unknown.
    load = 0.0 if settings.places == sweep_plan.RAY else tools.load_per_core()
    schedule = Schedule(request.jobs, shared_imports=settings.shared_imports, load_per_core=load)
    for line in (*request.notes, *sweep_plan.plan_lines(request, schedule)):
        terminal.note(line)
    if settings.dry_run:
        return None, None
    pool = _pool(settings, tools)
    # Ray, which a pool may start, has a handler of its own for SIGTERM.
    with sigterm_interrupts():
        try:
            environment, commit = pool.prepare(request, terminal.line)
            sweep = _sweep(request, environment, tools, schedule, commit=commit)
            with locked(sweep.folder):
                open_folder(request, sweep.folder, sweep.jobs)
                terminal.line(f"records: {sweep.folder}")
                loop = Loop(sweep, pool, terminal, started=started)
                stopped: BaseException | None = None
                try:
                    pool.begin(sweep)
                    loop.measure(request, is_watched=tools.find_monitor(environment) is not None)
                except (KeyboardInterrupt, ResultsError, DeviceError, SweepTimeoutError) as error:
                    stopped = error
                # The workers save their finished cells and end before the lock is released.
                pool.stop()
                while loop.take_events(0):
                    pass
        finally:
            pool.stop()
    if isinstance(stopped, SweepTimeoutError):
        terminal.line(f"the time is up (--timeout {settings.timeout_s:g})")
    return sweep, stopped


def _pool(settings: Settings, tools: Tools) -> Pool:
    numbers = local_numbers(settings.places) if settings.places else []
    if numbers is not None:
        if settings.runtime_env:
            raise SpecError("--runtime-env goes with --places ray")
        return LocalPool(numbers, tools)
    return RayPool(settings.runtime_env, tools)


def _sweep(
    request: SweepRequest, environment: Environment, tools: Tools, schedule: Schedule, *, commit: str | None
) -> Sweep:
    config, workload = request.config, workload_of(request.config.experiment.workload)
    first = next(iter(request.jobs.values()))
    if commit is None:
        # The hub commit in the jobs that the sweep saved when it began.
        commits = [job.origin.commit for job in request.saved if job.origin and job.source == first.source]
        commit = next(filter(None, commits), None)
    jobs = {
        name: with_origin(job, environment, config=config.path, config_sha256=config.sha256, commit=commit)
        for name, job in request.jobs.items()
    }
    folder = request.folder or RESULTS / slug(environment.device.name.lower()) / slug(first.title.lower()) / now_id()
    started_at, progress = request.file.started_at, Progress(LiveTable(workload))
    return Sweep(jobs, folder, started_at, request.settings, progress, schedule, request.display, tools.run)


class Loop:
    """Loop of a sweep, which gives rounds and then quality measurements to workers until all are done."""

    def __init__(self, sweep: Sweep, pool: Pool, terminal: Terminal, *, started: float) -> None:
        """Create a loop without work; `started` is a reading of `time.monotonic`."""
        self._sweep, self._pool, self._terminal, self._started = sweep, pool, terminal, started
        self._cards: Mapping[int, str | None] = {}
        """GPU of each incomplete round, which has to measure the rest of that round."""
        self._queue: list[Work] = []
        self._busy: dict[Worker, tuple[Work, float]] = {}
        """Work in progress of each worker, and its start (`time.monotonic`)."""
        self._unfit: set[Worker] = set()
        self._losses: Counter[Worker] = Counter()
        self._tries: Counter[Work] = Counter()
        self._last_round: dict[Worker, int] = {}
        self._last_lines: dict[Worker, str] = {}
        self._round_s: list[float] = []
        self._rounds_of: Counter[str | None] = Counter()

    def measure(self, request: SweepRequest, *, is_watched: bool) -> None:
        """Measure the missing rounds, then add rounds while an interval is wide, then judge the quality."""
        sweep, file, terminal, settings = self._sweep, request.file, self._terminal, request.settings
        rounds = file.rounds
        cards = {worker.card for worker in self._pool.workers() if worker.card or not worker.name}
        reusable = find_reusable(sweep, rounds=rounds, cards=cards, is_watched=is_watched)
        self._cards = reusable.cards
        sweep.schedule.judgements = [judgement.variants for judgement in missing_judgements(sweep)]
        # A damaged list of processes costs no more than the forecast.
        with contextlib.suppress(OSError, ValueError):
            sweep.schedule.recall(read_order(sweep.folder), reusable.records)
        tasks = missing_tasks(sweep.jobs, range(rounds), file.seed, finished=reusable.finished)
        self._take_in(reusable, request, tasks)
        measuring_since = time.monotonic()
        while True:
            sweep.schedule.add(tasks, rounds=rounds)
            numbers = dict.fromkeys(task.round for task in tasks)
            self.run([Round(number, tuple(task for task in tasks if task.round == number)) for number in numbers])
            more = self._rounds_after(rounds, file)
            if more == rounds:
                break
            write_json(file.model_copy(update={"rounds": more}), sweep.folder / SWEEP_FILE)
            tasks = missing_tasks(sweep.jobs, range(rounds, more), file.seed, finished=reusable.finished)
            rounds = more
        self._report_left_out(rounds)
        if settings.places and self._rounds_of:
            each = ", ".join(f"{name}: {count}" for name, count in sorted(self._rounds_of.items(), key=str))
            measured = plural(sum(self._rounds_of.values()), "round", "rounds")
            terminal.line(f"{measured} took {time.monotonic() - measuring_since:.0f} s ({each})")
        terminal.pin(f"\n{self._table()}")
        judgements = [judgement for judgement in missing_judgements(sweep) if judgement.records]
        sweep.schedule.judgements = [judgement.variants for judgement in judgements]
        self.run(judgements)

    def _rounds_after(self, rounds: int, file: SweepFile) -> int:
        """Return the new number of rounds, larger if disturbed rounds were left out or an interval is wide."""
        sweep, max_time_s, limit = self._sweep, self._sweep.settings.max_time_s, file.max_rounds
        is_late = max_time_s is not None and time.monotonic() > self._started + max_time_s
        # On a busy host, an added round would be left out as well.
        lost = Counter(cell[:2] for cell in sweep.progress.left_out)
        wanted = rounds if is_late or sweep.progress.is_host_busy else file.rounds + max(lost.values(), default=0)
        most = limit or 2 * file.rounds
        if rounds < min(most, wanted):
            rounds += 1
            cause = " and ".join(sorted({*sweep.progress.left_out.values()}))
            self._terminal.line(f"rounds are left out because of {cause}: adding round {rounds} of up to {most}")
            return rounds
        count = max(1, len(self._pool.workers()))
        return enough_rounds(sweep, file.baseline, rounds, limit, self._terminal, count=count, is_late=is_late)

    def _report_left_out(self, rounds: int) -> None:
        sweep, alike = self._sweep, defaultdict[tuple[str, int, str], list[str]](list)
        causes = grouped((cell[:2], cause) for cell, cause in sorted(sweep.progress.left_out.items()))
        for (variant, position), found in causes.items():
            points = sweep.points(variant)
            point = sweep.workload.point_text(points[position]) if len(points) > 1 else ""
            alike[point, len(found), " and ".join(sorted({*found}))].append(variant)
        for (point, count, cause), variants in alike.items():
            name, lost = ", ".join(filter(None, (*variants, point))), "is" if count == 1 else "are"
            reason = f"{cause} disturbed {count} of {plural(rounds, 'round', 'rounds')}, which {lost} left out"
            is_kept = cause == "other programs" and not sweep.settings.allow_shared
            keeps = ", and --allow-shared keeps them" if is_kept else ""
            self._terminal.note(f"{name}: {reason}; --resume measures again{keeps}")
            if count == rounds:
                fault, alone = Missing(error_kind="disturbed", reason=reason), sweep.alone(variants[0])
                sweep.progress.failures.append(Failure(name, fault, sweep.folder, (), alone))

    def _take_in(self, reusable: ReusableCells, request: SweepRequest, tasks: Sequence[Task]) -> None:
        for note in reusable.notes:
            self._terminal.line(note)
        if request.settings.resume:
            cells = request.file.rounds * sum(len(job.grid.points()) for job in request.jobs.values())
            schedule = self._sweep.schedule
            remaining = schedule.duration(tasks, schedule.judgements)
            forecast = f"; first guess: {remaining} to go" if tasks or schedule.judgements else ""
            self._terminal.line(f"{len(reusable.finished)} of {cells} cells are there already{forecast}")
        self._sweep.progress.profiled |= reusable.profiled
        for (_, variant, position), cell in reusable.finished.items():
            self._sweep.progress.live_table.add(variant, position, cell)

    def run(self, works: Sequence[Work]) -> None:
        """Give `works` to workers until all are done; raises the error that ends the sweep."""
        self._queue, given_up = list(works), self._sweep.progress.given_up
        timeout_s = self._sweep.settings.timeout_s
        while self._queue or self._busy:
            self._queue = [
                work for work in self._queue if not isinstance(work, Round) or without_given_up(work.tasks, given_up)
            ]
            self._hand_out()
            left_s = self._started + timeout_s - time.monotonic() if timeout_s else TICK_S
            if left_s < 0:
                raise SweepTimeoutError
            for ended in self.take_events(min(TICK_S, left_s)):
                if isinstance(ended, Ended):
                    self._take(ended)
            self._pin()

    def take_events(self, timeout_s: float) -> list[Line | Ended]:
        """Print the workers' new lines, and return all new events."""
        events = self._pool.events(timeout_s)
        for event in events:
            if isinstance(event, Line):
                if event.text.startswith("["):
                    self._last_lines[event.worker] = event.text
                self._terminal.note(event.worker.line(event.text))
        return events

    def _hand_out(self) -> None:
        workers = self._workers()
        if self._queue and not workers and not self._busy and not self._pool.is_preparing():
            raise DeviceError(f"no worker is left for {', '.join(map(str, self._queue))}")
        self._sweep.schedule.workers = max(1, len(workers))
        for worker in workers:
            if worker in self._busy or not (work := self._next(worker, workers)):
                continue
            self._queue.remove(work)
            neighbours = [neighbour for neighbour in workers if neighbour.host == worker.host and neighbour != worker]
            waiting = sum(neighbour not in self._busy for neighbour in neighbours)
            shares_host = len(neighbours) - waiting + min(waiting, len(self._queue)) > 0
            if worker.name:
                self._terminal.line(f"{worker.name}: {work}")
            self._last_lines[worker] = str(work)
            self._busy[worker] = (work, time.monotonic())
            if isinstance(work, Round):
                self._last_round[worker] = work.number
            self._pool.start(worker, work, shares_host=shares_host)

    def _next(self, worker: Worker, workers: Sequence[Worker]) -> Work | None:
        """Return the next work of a worker; None if the queue has none for it.

        After a round in forward order, a worker prefers the next round, in backward order: a drift over both cancels.
        """
        others = {candidate.card for candidate in workers} - {worker.card}
        last = self._last_round.get(worker, -1)

        def rank(work: Work) -> int:
            if not isinstance(work, Round):
                return 3
            if worker.card and self._cards.get(work.number) == worker.card:
                return 0
            if last % 2 == 0 and work.number == last + 1:
                return 1
            return 2 + work.number % 2

        free = [
            work for work in self._queue if not isinstance(work, Round) or self._cards.get(work.number) not in others
        ]
        return free[0] if free and len(workers) == 1 else min(free, key=rank, default=None)

    def _take(self, ended: Ended) -> None:
        worker, (_, since_s) = ended.worker, self._busy.pop(ended.worker)
        if ended.error:
            raise ended.error
        if ended.lost:
            self._lose(worker, ended.work, ended.lost)
        elif ended.unfit:
            self._unfit.add(worker)
            self._terminal.line(f"{worker.name}: left out: {ended.unfit}")
            self._queue.insert(0, ended.work)
        else:
            self._losses[worker] = 0
            if isinstance(ended.work, Round):
                self._finish_round(worker, time.monotonic() - since_s, ended.work)

    def _finish_round(self, worker: Worker, seconds: float, work: Round) -> None:
        self._round_s.append(seconds)
        self._rounds_of[worker.name] += 1
        if worker.name:
            self._terminal.line(f"{worker.name}: {work} is done, {approximate_duration(seconds)}")
        if not self._terminal.can_pin and any(isinstance(work, Round) for work in self._queue):
            rounds, under_way = self._sweep.schedule.rounds, [work for work, _ in self._busy.values()]
            finished = rounds - sum(isinstance(unfinished, Round) for unfinished in (*self._queue, *under_way))
            self._terminal.line(f"after {finished} of {rounds} rounds:\n{self._table()}")

    def _lose(self, worker: Worker, work: Work, reason: str) -> None:
        self._losses[worker] += 1
        self._tries[work] += 1
        if self._losses[worker] >= LOSSES:
            self._unfit.add(worker)
        is_again = self._tries[work] < TRIES
        self._terminal.line(f"{worker.name}: {reason}; {work} is {'run again' if is_again else 'given up'}")
        if is_again:
            self._queue.insert(0, work)
            return
        alone = self._sweep.alone(work.tasks[0].variant if isinstance(work, Round) else work.variants[0])
        crash = Missing(error_kind="crash", reason=reason)
        self._sweep.progress.failures.append(Failure(str(work), crash, self._sweep.folder, (), alone))

    def _pin(self) -> None:
        if not self._terminal.can_pin:
            return
        now = time.monotonic()
        lines = []
        for worker, (_, since_s) in self._busy.items():
            text = self._last_lines[worker]
            lines.append(f"{worker.name}: {text}, for {approximate_duration(now - since_s)}" if worker.name else text)
        if len(self._workers()) > 1:
            rounds = [now - since_s for work, since_s in self._busy.values() if isinstance(work, Round)]
            text = f"{len(rounds)} rounds in progress, {len(self._queue)} to come"
            if self._round_s:
                mean_s = statistics.fmean(self._round_s)
                longest_s = max((mean_s - elapsed_s for elapsed_s in rounds), default=0.0)
                waves = math.ceil(len(self._queue) / max(1, len(self._busy)))
                text += f", {approximate_duration(max(0.0, longest_s) + waves * mean_s)} left"
            lines.append(text)
        self._terminal.pin("\n".join(["", self._table(), *lines]))

    def _table(self) -> str:
        running = [line.split("] ")[1].split(" (")[0] for line in self._last_lines.values() if line.startswith("[")]
        variants, points = list(self._sweep.jobs), self._sweep.points(next(iter(self._sweep.jobs)))
        running = running if self._busy else []
        return self._sweep.progress.live_table.text(variants, points, self._terminal.width - 1, running=running)

    def _workers(self) -> list[Worker]:
        return [worker for worker in self._pool.workers() if worker not in self._unfit]
