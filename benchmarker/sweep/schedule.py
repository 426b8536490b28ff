"""In which order everything is measured, and how long it will take.

Slow drift (a room that warms up, a clock that sinks) looks like a difference between variants when one is always
measured after the other; no statistic repairs that. So rounds are outermost: each variant once, in a fresh process,
then all of them again. Every second round runs backwards, which gives each pair of rounds the same mean position for
all variants, so that a linear drift within rounds cancels; and each pair starts with another variant, which the seed
decides.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarker.core.formatting import approximate_duration, plural
from benchmarker.schema.job import Job
from benchmarker.schema.registry import workload_of
from benchmarker.sweep.folder import CellId
from benchmarker.sweep.places.place import RAY, local_numbers
from benchmarker.sweep.request import SweepRequest

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload

START_S = 20.0
"""First guess of what a process takes before its first cell."""
FORKED_START_S = 10.0
"""The same where the libraries are imported already, which takes `START_S` once a round. On an H100 it was 5 to 25 s,
set-up included."""


def order(variants: Sequence[str], round_number: int, seed: int) -> list[str]:
    """The variants in the order of one round, which is counted from 0."""
    count = len(variants)
    # The first round is in the config's order, which is then the order of the tables.
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
    """What part of the variant's grid they are."""


def missing_tasks(request: SweepRequest, finished: Collection[CellId]) -> list[Task]:
    """Everything that is still to be measured, in its order."""
    tasks = []
    for number in range(request.rounds):
        for variant in order(list(request.jobs), number, request.seed):
            count = len(request.jobs[variant].grid.points())
            cells = tuple(position for position in range(count) if (number, variant, position) not in finished)
            if cells:
                tasks.append(Task(number, variant, cells, len(cells) / count))
    return tasks


def without_given_up(tasks: Sequence[Task], given_up: Collection[tuple[str, int]]) -> list[Task]:
    """What is still to be measured when these cells, by variant and position, are not tried again."""
    remaining = []
    for task in tasks:
        cells = tuple(position for position in task.cells if (task.variant, position) not in given_up)
        if cells:
            remaining.append(replace(task, cells=cells, share=task.share * len(cells) / len(task.cells)))
    return remaining


class Forecast:
    """How long what is left will take: a guess that becomes a measurement."""

    def __init__(self, jobs: Mapping[str, Job], *, shared_imports: bool = False) -> None:
        start_s = FORKED_START_S + START_S / len(jobs) if shared_imports else START_S
        self._guesses = {name: start_s + _repeats_s(job) for name, job in jobs.items()}
        self._ratios: dict[str, list[float]] = {}

    def learn(self, task: Task, seconds: float) -> None:
        """Take in how long a task took."""
        self._ratios.setdefault(task.variant, []).append(seconds / (self._guesses[task.variant] * task.share))

    def seconds(self, tasks: Sequence[Task]) -> float:
        """What these tasks will take: as the same variant did before, or as the others did."""
        medians = [statistics.median(ratios) for ratios in self._ratios.values()]
        otherwise = statistics.median(medians) if medians else 1.0
        return sum(
            self._guesses[task.variant]
            * task.share
            * (statistics.median(self._ratios[task.variant]) if task.variant in self._ratios else otherwise)
            for task in tasks
        )


def _repeats_s(job: Job) -> float:
    """Seconds of the repeats of one process, before anything is known of the device."""
    repeats, workload = job.procedure.warmup + job.procedure.runs, workload_of(job.workload)
    return sum(repeats * workload.repeat_s(point) for point in job.grid.points())


def plan_lines(request: SweepRequest, forecast: Forecast, places: str | None = None) -> list[str]:
    """What is going to be measured, where, and roughly how long that takes.

    Args:
        places: As `--places` has them; None for one round after another on this host.

    Raises:
        SpecError: There are no such places.
    """
    numbers = local_numbers(places) if places else None
    together = min(len(numbers), request.rounds) if numbers else 1
    tasks = missing_tasks(request, ())
    first = next(iter(request.jobs.values()))
    points, workload = first.grid.points(), workload_of(first.workload)
    cells = sum(len(task.cells) for task in tasks)
    # A place takes a whole round: of three rounds at two places one runs by itself.
    turns = math.ceil(request.rounds / together)
    return [
        f"plan: {_rounds_words(request)} of {', '.join(request.jobs)}",
        f"  {workload.grid_heading}: {'; '.join(map(workload.point_text, points))}",
        f"  {plural(len(tasks), 'process', 'processes')}, {plural(cells, 'cell', 'cells')}, "
        f"by a first guess {approximate_duration(forecast.seconds(tasks) * turns / request.rounds)}",
        *_place_lines(places, together, unused=len(numbers or ()) - together),
        f"  order rotated, and reversed in every second round; seed {request.seed}",
        *_judging_lines(workload, list(request.jobs.values())),
        # Hosts elsewhere have libraries of their own.
        *([] if places else _lacking_lines(request.jobs)),
    ]


def _lacking_lines(jobs: Mapping[str, Job]) -> list[str]:
    """Variants that cannot run on this host, said before hours are spent on the others."""
    reasons = {name: workload_of(job.workload).lacking(job) for name, job in jobs.items()}
    return [f"  {name} cannot run here: {reason}" for name, reason in reasons.items() if reason]


def _place_lines(places: str | None, together: int, *, unused: int) -> list[str]:
    """Where rounds run, and how many at the same time, as far as that is known before the places are looked at."""
    if places is None:
        return []
    known = plural(together, "round at a time", "rounds at a time")
    if places == RAY:
        known = "one round at a time for each GPU that there is; the guess is of one GPU"
    elif unused > 0:
        known += f", so that {plural(unused, 'place is', 'places are')} not used: a place takes a whole round"
    return [f"  at {places}: {known}; the checkpoints are prepared before, once a host"]


def _rounds_words(request: SweepRequest) -> str:
    words = plural(request.rounds, "round", "rounds")
    is_open = request.max_rounds is not None and request.max_rounds > request.rounds
    return f"{words} (up to {request.max_rounds} while an interval is wide)" if is_open else words


def _judging_lines(workload: Workload, jobs: Sequence[Job]) -> list[str]:
    """What is measured after everything that is timed; nothing where nothing is."""
    judging = workload.judging()
    judged = [job for job in jobs if judging and judging.form(job)]
    return [f"  then {judging.name} ({judging.words(judged[0])}), once for each form"] if judging and judged else []
