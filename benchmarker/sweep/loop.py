"""The loop of every sweep: hand work to idle workers, print their lines, and repeat work that died with its worker.

Everything is printed and decided in the main thread, which also receives Ctrl-C. `run` raises whatever ends the sweep;
the caller then stops the workers.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarker.core.console import Terminal
from benchmarker.core.errors import DeviceError
from benchmarker.core.formatting import approximate_duration
from benchmarker.sweep.interrupt import SweepTimeoutError
from benchmarker.sweep.retries import Fault
from benchmarker.sweep.sweep_plan import without_given_up
from benchmarker.sweep.sweep_state import Failure, Sweep
from benchmarker.sweep.workers.base import Ended, Line, Pool, Round, Work, Worker

TRIES = 3
"""Attempts at work that died with its worker."""
LOSSES = 2
"""Consecutive deaths after which a worker gets no more work."""
TICK_S = 1.0


@dataclass(frozen=True)
class Busy:
    work: Work
    since_s: float


class Loop:
    """Work that is still to be done, and the workers that do it."""

    def __init__(self, sweep: Sweep, pool: Pool, terminal: Terminal, *, deadline_s: float | None) -> None:
        self._sweep, self._pool, self._terminal = sweep, pool, terminal
        self._deadline_s = deadline_s
        self._queue: list[Work] = []
        self._busy: dict[Worker, Busy] = {}
        self._unfit: set[Worker] = set()
        self._losses: Counter[Worker] = Counter()
        self._tries: Counter[Work] = Counter()
        self._last_round: dict[Worker, int] = {}
        self._last_lines: dict[Worker, str] = {}
        self._round_s: list[float] = []
        self.rounds_of: Counter[str | None] = Counter()
        """Finished rounds by worker."""

    def run(self, works: Sequence[Work]) -> None:
        """Do all of the work, or raise the error that ends the sweep."""
        self._queue = list(works)
        while self._queue or self._busy:
            self._queue = [work for work in self._queue if not self._is_given_up(work)]
            self._hand_out()
            left_s = TICK_S if self._deadline_s is None else self._deadline_s - time.monotonic()
            if left_s < 0:
                raise SweepTimeoutError
            for event in self._pool.events(min(TICK_S, left_s)):
                if isinstance(event, Line):
                    self._print(event)
                else:
                    self._take(event)
            self._pin()

    def print_rest(self) -> None:
        while events := self._pool.events(0):
            for event in events:
                if isinstance(event, Line):
                    self._print(event)

    def _hand_out(self) -> None:
        workers = self._workers()
        if self._queue and not workers and not self._busy and not self._pool.is_preparing():
            raise DeviceError(f"no worker is left for {', '.join(map(str, self._queue))}")
        self._sweep.schedule.workers = max(1, len(workers))
        for worker in workers:
            work = None if worker in self._busy else self._next(worker, workers)
            if work is None:
                continue
            self._queue.remove(work)
            neighbours = [neighbour for neighbour in workers if neighbour.host == worker.host and neighbour != worker]
            waiting = sum(neighbour not in self._busy for neighbour in neighbours)
            shares_host = len(neighbours) - waiting + min(waiting, len(self._queue)) > 0
            if worker.name:
                self._terminal.line(f"{worker.name}: {work}")
            self._last_lines[worker] = str(work)
            self._busy[worker] = Busy(work, time.monotonic())
            if isinstance(work, Round):
                self._last_round[worker] = work.number
            self._pool.start(worker, work, shares_host=shares_host)

    def _is_given_up(self, work: Work) -> bool:
        return isinstance(work, Round) and not without_given_up(work.tasks, self._sweep.progress.given_up)

    def _next(self, worker: Worker, workers: Sequence[Worker]) -> Work | None:
        """Choose work for a worker; None if there is none for it.

        After a round that ran forwards, a worker measures the one that runs backwards, so that a drift within the two
        cancels.
        """
        cards = {candidate.card for candidate in workers}
        bound = [work for work in self._queue if isinstance(work, Round) and work.is_bound and work.card == worker.card]
        free = [
            work
            for work in self._queue
            if not isinstance(work, Round) or not work.is_bound or work.card not in cards - {worker.card}
        ]
        if len(workers) == 1 or not free:
            return next(iter(free), None)
        last = self._last_round.get(worker, -1)
        partner = [work for work in free if isinstance(work, Round) and last % 2 == 0 and work.number == last + 1]
        even = [work for work in free if isinstance(work, Round) and work.number % 2 == 0]
        return [*bound, *partner, *even, *free][0]

    def _take(self, ended: Ended) -> None:
        busy, worker = self._busy.pop(ended.worker), ended.worker
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
                self._finish_round(worker, time.monotonic() - busy.since_s, ended.work)

    def _finish_round(self, worker: Worker, seconds: float, work: Round) -> None:
        self._round_s.append(seconds)
        self.rounds_of[worker.name] += 1
        if worker.name:
            self._terminal.line(f"{worker.name}: {work} is done, {approximate_duration(seconds)}")
        if not self._terminal.can_pin and any(isinstance(work, Round) for work in self._queue):
            rounds, under_way = self._sweep.schedule.rounds, [busy.work for busy in self._busy.values()]
            finished = rounds - sum(isinstance(unfinished, Round) for unfinished in (*self._queue, *under_way))
            self._terminal.line(f"after {finished} of {rounds} rounds:\n{self.table()}")

    def _lose(self, worker: Worker, work: Work, reason: str) -> None:
        self._losses[worker] += 1
        self._tries[work] += 1
        if self._losses[worker] >= LOSSES:
            self._unfit.add(worker)
        if self._tries[work] < TRIES:
            self._terminal.line(f"{worker.name}: {reason}; {work} is run again")
            self._queue.insert(0, work)
            return
        self._terminal.line(f"{worker.name}: {reason}; {work} is given up")
        alone = self._sweep.alone(work.tasks[0].variant if isinstance(work, Round) else work.variants[0])
        failure = Failure(str(work), Fault("crash", reason), self._sweep.folder, (), alone)
        self._sweep.progress.failures.append(failure)

    def _print(self, line: Line) -> None:
        if line.text.startswith("["):
            self._last_lines[line.worker] = line.text
        self._terminal.line(line.worker.line(line.text))

    def _pin(self) -> None:
        if not self._terminal.can_pin:
            return
        now = time.monotonic()
        lines = [
            f"{worker.name}: {self._last_lines[worker]}, for {approximate_duration(now - busy.since_s)}"
            if worker.name
            else self._last_lines[worker]
            for worker, busy in self._busy.items()
        ]
        if len(self._workers()) > 1:
            lines.append(self._left(now))
        self._terminal.pin("\n".join(["", self.table(), *lines]))

    def table(self) -> str:
        running = [line.split("] ")[1].split(" (")[0] for line in self._last_lines.values() if line.startswith("[")]
        variants = list(self._sweep.jobs)
        points = self._sweep.points(variants[0])
        return self._sweep.progress.live_table.text(variants, points, running=running if self._busy else ())

    def _workers(self) -> list[Worker]:
        return [worker for worker in self._pool.workers() if worker not in self._unfit]

    def _left(self, now: float) -> str:
        rounds = [busy for busy in self._busy.values() if isinstance(busy.work, Round)]
        text = f"{len(rounds)} rounds in progress, {len(self._queue)} to come"
        if not self._round_s:
            return text
        mean_s = sum(self._round_s) / len(self._round_s)
        longest_s = max((mean_s - (now - busy.since_s) for busy in rounds), default=0.0)
        waves = -(-len(self._queue) // max(1, len(self._busy)))
        return f"{text}, {approximate_duration(max(0.0, longest_s) + waves * mean_s)} left"
