"""In which order everything is measured, and how long it will take.

Slow drift (a room that warms up, a clock that sinks) looks like a difference between variants when one is always
measured after the other; no statistic repairs that. So rounds are outermost: each variant once, in a fresh process,
then all of them again. Every second round runs backwards, which gives each pair of rounds the same mean position for
all variants, so that a linear drift within rounds cancels; and each pair starts with another variant, which the seed
decides.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarker.comparison.words import duration_words, plural
from benchmarker.execution.job import Job
from benchmarker.sweep.folder import CellId
from benchmarker.sweep.request import Asked
from benchmarker.sweep.shape_text import shape_words

START_S = 20.0
"""First guess of what a process takes before its first cell."""
TOKEN_S = 0.03
"""First guess of a step; Qwen3-4B in fp16 takes about that in plain `generate`."""


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


def missing_tasks(asked: Asked, done: Collection[CellId]) -> list[Task]:
    """Everything that is still to be measured, in its order."""
    tasks = []
    for number in range(asked.rounds):
        for variant in order(list(asked.jobs), number, asked.seed):
            count = len(asked.jobs[variant].grid.points())
            cells = tuple(at for at in range(count) if (number, variant, at) not in done)
            if cells:
                tasks.append(Task(number, variant, cells, len(cells) / count))
    return tasks


def without_given_up(tasks: Sequence[Task], given_up: Collection[tuple[str, int]]) -> list[Task]:
    """What is still to be measured when these cells, by variant and position, are not tried again."""
    left = []
    for task in tasks:
        cells = tuple(at for at in task.cells if (task.variant, at) not in given_up)
        if cells:
            left.append(replace(task, cells=cells, share=task.share * len(cells) / len(task.cells)))
    return left


class Forecast:
    """How long what is left will take: a guess that becomes a measurement."""

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self._guesses = {name: _guess_s(job) for name, job in jobs.items()}
        self._ratios: dict[str, list[float]] = {}

    def learn(self, task: Task, seconds: float) -> None:
        """Take in how long a task took."""
        self._ratios.setdefault(task.variant, []).append(seconds / (self._guesses[task.variant] * task.share))

    def seconds(self, tasks: Sequence[Task]) -> float:
        """What these tasks will take: as the same variant did before, or as the others did."""
        known = [statistics.median(ratios) for ratios in self._ratios.values()]
        otherwise = statistics.median(known) if known else 1.0
        return sum(
            self._guesses[task.variant]
            * task.share
            * (statistics.median(self._ratios[task.variant]) if task.variant in self._ratios else otherwise)
            for task in tasks
        )


def _guess_s(job: Job) -> float:
    """Seconds of one process, before anything is known of the device."""
    repeats = job.procedure.warmup + job.procedure.runs
    return START_S + sum(repeats * point.new_tokens * TOKEN_S for point in job.grid.points())


def _judged_words(job: Job) -> str:
    return ", ".join([*([job.quality.size] if job.quality.size != "off" else []), *job.quality.tasks])


def plan_lines(asked: Asked, forecast: Forecast) -> list[str]:
    """What is going to be measured, and roughly how long that takes."""
    tasks = missing_tasks(asked, ())
    points = next(iter(asked.jobs.values())).grid.points()
    cells = sum(len(task.cells) for task in tasks)
    judged = [name for name, job in asked.jobs.items() if job.quality.is_asked]
    quality = f"  then quality ({_judged_words(asked.jobs[judged[0]])}), once for each form" if judged else None
    lines = [
        f"plan: {plural(asked.rounds, 'round', 'rounds')} of {', '.join(asked.jobs)}",
        f"  prompt x new tokens: {'; '.join(map(shape_words, points))}",
        f"  {plural(len(tasks), 'process', 'processes')}, {plural(cells, 'cell', 'cells')}, "
        f"by a first guess {duration_words(forecast.seconds(tasks))}",
        f"  order rotated, and reversed in every second round; seed {asked.seed}",
        quality,
    ]
    return [line for line in lines if line]
