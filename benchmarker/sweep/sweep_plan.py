"""Order in which everything is measured, and a forecast of the time that it takes.

Slow drift (a room that warms up, a clock that sinks) looks like a difference between variants if one variant is always
measured after the other; no statistic repairs that. Rounds are therefore outermost: each variant once, in a fresh
process, then all of them again. Every second round runs backwards, which gives all variants the same mean position in
each pair of rounds, so that a linear drift within rounds cancels. Each pair starts with another variant; the seed
determines which.
"""

from __future__ import annotations

import math
import random
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarker.core.errors import SpecError
from benchmarker.core.formatting import approximate_duration, plural
from benchmarker.schema.registry import workload_of

if TYPE_CHECKING:
    from benchmarker.schema.job import Job
    from benchmarker.sweep.folder import CellId
    from benchmarker.sweep.request import SweepRequest
    from benchmarker.workloads.base import Workload

START_S = 20.0
"""First guess of the time that a process takes before its first cell."""
FORKED_START_S = 10.0
"""First guess for a process with imported libraries; the imports take `START_S` once a round. On an H100 it was 5 to
25 s, set-up included."""
RAY = "ray"
LOCAL = "local:"
"""Beginning of the name of a worker on this host; the number of its GPU follows."""


def order(variants: Sequence[str], round_number: int, seed: int) -> list[str]:
    """Return the variants in the order of one round, which is counted from 0."""
    count = len(variants)
    # The first round is in the config's order, which then becomes the order of the tables.
    firsts = [0, *random.Random(seed).sample(range(1, count), k=count - 1)]
    first = firsts[round_number // 2 % count]
    rotated = [*variants[first:], *variants[:first]]
    return rotated[::-1] if round_number % 2 else rotated


@dataclass(frozen=True)
class Task:
    """One variant in one round."""

    round: int
    variant: str
    cells: tuple[int, ...]
    """Positions in the grid that are not measured yet."""
    share: float
    """Fraction of the variant's grid that the cells are."""


def missing_tasks(
    jobs: Mapping[str, Job], rounds: Collection[int], seed: int, *, finished: Collection[CellId]
) -> list[Task]:
    """Return the tasks of these rounds that are still to be measured, in order."""
    tasks = []
    for number in rounds:
        for variant in order(list(jobs), number, seed):
            count = len(jobs[variant].grid.points())
            cells = tuple(position for position in range(count) if (number, variant, position) not in finished)
            if cells:
                tasks.append(Task(number, variant, cells, len(cells) / count))
    return tasks


def without_given_up(tasks: Sequence[Task], given_up: Collection[tuple[str, int]]) -> list[Task]:
    """Return the tasks without the cells, by variant and position, that are not tried again."""
    remaining = []
    for task in tasks:
        cells = tuple(position for position in task.cells if (task.variant, position) not in given_up)
        if cells:
            remaining.append(Task(task.round, task.variant, cells, task.share * len(cells) / len(task.cells)))
    return remaining


class Forecast:
    """Time that tasks will take: a first guess, corrected by the tasks that were measured."""

    def __init__(self, jobs: Mapping[str, Job], *, shared_imports: bool) -> None:
        start_s = FORKED_START_S + START_S / len(jobs) if shared_imports else START_S
        self._guesses = {name: start_s + _repeats_s(job) for name, job in jobs.items()}
        self._ratios: dict[str, list[float]] = {}

    def learn(self, task: Task, seconds: float) -> None:
        """Take in the time of a measured task."""
        self._ratios.setdefault(task.variant, []).append(seconds / (self._guesses[task.variant] * task.share))

    def seconds(self, tasks: Sequence[Task]) -> float:
        """Return the time of these tasks, from the same variant's earlier tasks if there are any."""
        medians = [statistics.median(ratios) for ratios in list(self._ratios.values())]
        otherwise = statistics.median(medians) if medians else 1.0
        return sum(
            self._guesses[task.variant]
            * task.share
            * (statistics.median(self._ratios[task.variant]) if task.variant in self._ratios else otherwise)
            for task in tasks
        )


def _repeats_s(job: Job) -> float:
    repeats = job.procedure.warmup + job.procedure.runs
    return sum(repeats * job.repeat_s(point) for point in job.grid.points())


class Schedule:
    """Tasks that are not begun yet, with the position of the present one."""

    def __init__(self, tasks: Sequence[Task], forecast: Forecast, *, rounds: int) -> None:
        self.forecast = forecast
        self.rounds = rounds
        self.workers = 1
        """Workers that share the tasks."""
        self._left = list(tasks)
        self._begun = 0

    def add(self, tasks: Sequence[Task], *, rounds: int) -> None:
        """Add the tasks of further rounds."""
        self._left, self.rounds = [*self._left, *tasks], rounds

    def begin(self, task: Task, given_up: Collection[tuple[str, int]]) -> str:
        """Take a task and return `[round 1/3, 2 of 6] int8 (about 5 min left)`."""
        remaining = without_given_up(self._left, given_up)
        identity = (task.round, task.variant)
        self._left = [later for later in remaining if (later.round, later.variant) != identity]
        self._begun += 1
        left_s = self.forecast.seconds([task, *self._left]) / min(self.workers, 1 + len(self._left))
        position = f"[round {task.round + 1}/{self.rounds}, {self._begun} of {self._begun + len(self._left)}]"
        return f"{position} {task.variant} ({approximate_duration(left_s)} left)"


def local_numbers(places: str) -> list[int] | None:
    """Return the GPU numbers in `local:0,1`; None for `ray`."""
    if places == RAY:
        return None
    if not re.fullmatch(LOCAL + r"\d+(,\d+)*", places):
        raise SpecError(
            f"--places {places}: no such workers; give 'local:0,1' for GPUs of this host by number, or 'ray'"
        )
    numbers = [int(number) for number in places.removeprefix(LOCAL).split(",")]
    if len(set(numbers)) < len(numbers):
        raise SpecError(f"--places {places}: contains a number twice")
    return numbers


def plan_lines(request: SweepRequest, forecast: Forecast) -> list[str]:
    """Return a description of the sweep: variants, cells, workers and a first guess of the time; raises SpecError."""
    places = request.settings.places
    numbers = local_numbers(places) if places else None
    workers = min(len(numbers), request.rounds) if numbers else 1
    tasks = missing_tasks(request.jobs, range(request.rounds), request.seed, finished=())
    first = next(iter(request.jobs.values()))
    points, workload = first.grid.points(), workload_of(first.workload)
    cells = sum(len(task.cells) for task in tasks)
    # A worker measures entire rounds: with three rounds and two workers, one round runs alone.
    turns = math.ceil(request.rounds / workers)
    return [
        f"plan: {_rounds_text(request)} of {', '.join(request.jobs)}",
        f"  {workload.grid_heading}: {'; '.join(map(workload.point_text, points))}",
        f"  {plural(len(tasks), 'process', 'processes')}, {plural(cells, 'cell', 'cells')}, "
        f"first guess: {approximate_duration(forecast.seconds(tasks) * turns / request.rounds)}",
        *_worker_lines(places, workers, unused=len(numbers or ()) - workers),
        f"  order rotated, and reversed in every second round; seed {request.seed}",
        *_judging_lines(workload, list(request.jobs.values())),
        # The libraries of other hosts are unknown.
        *([] if places else _unsupported_lines(request.jobs)),
    ]


def _unsupported_lines(jobs: Mapping[str, Job]) -> list[str]:
    reasons = {name: workload_of(job.workload).lacking(job) for name, job in jobs.items()}
    return [f"  {name} cannot run here: {reason}" for name, reason in reasons.items() if reason]


def _worker_lines(places: str | None, workers: int, *, unused: int) -> list[str]:
    if places is None:
        return []
    parallel = plural(workers, "round at a time", "rounds at a time")
    if places == RAY:
        parallel = "one round at a time for each GPU; the guess is for one GPU"
    elif unused > 0:
        parallel += f"; {plural(unused, 'worker is', 'workers are')} not used, because a worker measures entire rounds"
    return [f"  at {places}: {parallel}; each host prepares its checkpoints first"]


def _rounds_text(request: SweepRequest) -> str:
    text = plural(request.rounds, "round", "rounds")
    is_open = request.max_rounds is not None and request.max_rounds > request.rounds
    return f"{text} (up to {request.max_rounds} while an interval is wide)" if is_open else text


def _judging_lines(workload: Workload, jobs: Sequence[Job]) -> list[str]:
    judging = workload.judging()
    judged = [job for job in jobs if judging and judging.form(job)]
    return (
        [f"  then {judging.name} ({judging.words(judged[0])}), once for each quantization"]
        if judging and judged
        else []
    )
