"""Order of a sweep's measurements, forecast of the remaining time, and the rule by which a sweep adds rounds.

Slow drift (a room that warms up, a clock that sinks) looks like a difference between variants if one variant is always
measured after the other; no statistic repairs that. Rounds are therefore outermost: each variant once, in a fresh
process, then all of them again. Every second round runs backwards, which gives all variants the same mean position in
each pair of rounds, so that a linear drift within rounds cancels. Each pair starts with another variant; the seed
determines which.

Rounds are added if confidence intervals are wide, never because of a verdict: continuing until a difference is found
would find differences that do not exist. Host-bound variants do not extend a sweep, since the host keeps their
intervals wide.
"""

from __future__ import annotations

import math
import random
import re
import statistics
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarker.comparison.results import results_of_records
from benchmarker.comparison.rows import grouped
from benchmarker.core.errors import ResultsError, SpecError
from benchmarker.core.formatting import approximate_range, percent, plural
from benchmarker.core.stats import MIN_ROUNDS
from benchmarker.engines.registry import HOST_BOUND_ENGINES
from benchmarker.schema.record_io import OrderLine, collect
from benchmarker.schema.registry import workload_of

if TYPE_CHECKING:
    from benchmarker.core.console import Terminal
    from benchmarker.schema.job import Job
    from benchmarker.schema.record import RunRecord
    from benchmarker.sweep.request import SweepRequest
    from benchmarker.sweep.resume import CellId
    from benchmarker.sweep.sweep_state import Sweep

START_S = 20.0
FORKED_START_S = 10.0
"""First guess of a forked process's start; imports take `START_S` once a round. It was 5 to 25 s on an H100, set-up
included."""
EXIT_S = 1.0
CACHED_SHARE = 0.75
"""Share of a first process's set-up that later processes find cached: 0.5 to 0.9 in most recorded sweeps."""
LAST_TASKS = 6
BUSY_LOAD = 0.5
"""Number of other programs per core from which the plan mentions them."""
RAY = "ray"
RAY_ROUNDS = "one round at a time for each GPU; the guess is for one GPU"
NARROW = 0.04
"""Relative width of a speed-up's interval below which no more rounds are needed."""
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
    round: int
    variant: str
    cells: tuple[int, ...]
    share: float


def missing_tasks(
    jobs: Mapping[str, Job], rounds: Collection[int], seed: int, *, finished: Collection[CellId]
) -> list[Task]:
    tasks = []
    for number in rounds:
        for variant in order(list(jobs), number, seed):
            count = len(jobs[variant].grid.points())
            if cells := tuple(position for position in range(count) if (number, variant, position) not in finished):
                tasks.append(Task(number, variant, cells, len(cells) / count))
    return tasks


def without_given_up(tasks: Sequence[Task], given_up: Collection[tuple[str, int]]) -> list[Task]:
    """Return the tasks without the cells in `given_up` (variant, position), and without tasks that become empty."""
    remaining = []
    for task in tasks:
        if cells := tuple(position for position in task.cells if (task.variant, position) not in given_up):
            remaining.append(Task(task.round, task.variant, cells, task.share * len(cells) / len(task.cells)))
    return remaining


class Schedule:
    """Timed tasks and quality measurements that have not begun, and a forecast of their time.

    On a busy host the forecast is a range. Its lower end follows from undisturbed tasks, or else from the first guess;
    its upper end from all finished tasks and their repetitions, or else from the first guess and the present load.
    """

    def __init__(self, jobs: Mapping[str, Job], *, shared_imports: bool, load_per_core: float = 0.0) -> None:
        """Guess the time of each task; `load_per_core` is the number of other programs per core at the start."""
        self.rounds, self.workers = 0, 1
        self.judgements = judged_groups(jobs)
        self._jobs = jobs
        start_s = FORKED_START_S + START_S / len(jobs) if shared_imports else START_S
        self._guesses_s = {
            name: start_s + (job.procedure.warmup + job.procedure.runs) * sum(map(job.repeat_s, job.grid.points()))
            for name, job in jobs.items()
        }
        self.load_per_core = load_per_core
        self._ratios: dict[str, list[float]] = {}
        """Mean time of a process divided by the first guess, for each finished task, by variant."""
        self._quiet_ratios: dict[str, list[float]] = {}
        self._processes: deque[int] = deque(maxlen=LAST_TASKS)
        """Number of processes of each of the latest tasks: more than one if a cell was measured again."""
        self._once_s: list[float] = []
        self._records: dict[str, tuple[float, RunRecord]] = {}
        """Start and record of each variant's first process that measured a cell, if possible an undisturbed one."""
        self._judging_ratios: list[float] = []
        self._left: list[Task] = []
        self._begun = 0

    def add(self, tasks: Sequence[Task], *, rounds: int) -> None:
        self._left, self.rounds = [*self._left, *tasks], rounds

    def recall(self, lines: Sequence[OrderLine], records: Sequence[RunRecord]) -> None:
        """Correct the forecast by the tasks that the sweep finished before it was resumed."""
        tasks: dict[tuple[int, str], list[tuple[float, float, RunRecord]]] = defaultdict(list)
        for record in records:
            last_s = max((cell.timed_at[1] for cell in record.cells if cell.timed_at), default=0.0)
            for line in lines:
                if line.variant == record.variant.name and line.start < last_s < line.end:
                    tasks[line.round, line.variant].append((line.start, line.end, record))
        for (number, variant), processes in tasks.items():
            cells = statistics.fmean(len(record.cells) for _, _, record in processes)
            self.learn(Task(number, variant, (), cells / len(self._jobs[variant].grid.points())), processes)

    def learn(self, task: Task, processes: Sequence[tuple[float, float, RunRecord]]) -> None:
        """Correct the forecast by a finished task. `processes`: Unix times of start and end, and record, of each."""
        # A resumed sweep was paused between processes.
        seconds, variant = sum(ended - started for started, ended, _ in processes), task.variant
        started, ended, record = next((process for process in processes if process[2].cells), processes[0])
        if variant not in self._ratios:
            self._once_s.append(first_process_s(record, ended))
            seconds -= self._once_s[-1]
        ratio = seconds / len(processes) / (self._guesses_s[variant] * task.share)
        self._ratios.setdefault(variant, []).append(ratio)
        self._processes.append(len(processes))
        if variant not in self._records or self._records[variant][1].is_disturbed:
            quiet = ((start, other) for start, _, other in processes if other.cells and not other.is_disturbed)
            self._records[variant] = next(quiet, (started, record))
        if not any(record.is_disturbed for _, _, record in processes):
            self._quiet_ratios.setdefault(variant, []).append(ratio)

    def seconds(self, tasks: Sequence[Task], *, is_quiet: bool = False) -> float:
        """Return the forecast seconds of the tasks, from finished tasks of the same variants if there are any.

        If `is_quiet`, the forecast follows from undisturbed tasks alone, and assumes no repetitions.
        """
        known = list((self._quiet_ratios if is_quiet else self._ratios).items())
        ratios = {variant: statistics.median(measured) for variant, measured in known}
        otherwise = statistics.median(ratios.values()) if ratios else 1.0
        process_s = sum(
            self._guesses_s[task.variant] * task.share * ratios.get(task.variant, otherwise) for task in tasks
        )
        if not is_quiet and not ratios:
            process_s *= 1 + self.load_per_core
        elif not is_quiet and self._quiet_ratios:
            # Nothing is repeated on a host that disturbs every process.
            process_s *= statistics.fmean(self._processes)
        once_s = statistics.median(self._once_s) if self._once_s else 0.0
        return once_s * len({task.variant for task in tasks} - self._ratios.keys()) + process_s

    def judging_s(self, judgements: Sequence[tuple[str, ...]]) -> float:
        guesses = (self._judging_guess_s(variants[0]) for variants in judgements)
        return sum(guesses) * (statistics.median(self._judging_ratios) if self._judging_ratios else 1.0)

    def learn_judgement(self, variants: tuple[str, ...], seconds: float) -> None:
        self._judging_ratios.append(seconds / self._judging_guess_s(variants[0]))

    def _judging_guess_s(self, variant: str) -> float:
        """Return the guess by the variant's record, or else its first guess times the median ratio of the others."""

        def guess_s(name: str, started: float = 0.0, record: RunRecord | None = None) -> float:
            judging = workload_of(self._jobs[name].workload).judging()
            start_s = record.opened_at - started if record and record.opened_at else START_S
            return start_s + (judging.guess_s(self._jobs[name], record) if judging else 0.0)

        if variant in self._records:
            return guess_s(variant, *self._records[variant])
        ratios = [guess_s(name, *measured) / guess_s(name) for name, measured in self._records.items()]
        return guess_s(variant) * statistics.median(ratios or [1.0])

    def duration(
        self,
        tasks: Sequence[Task],
        judgements: Sequence[tuple[str, ...]],
        *,
        rounds_at_once: float = 1.0,
        judges: int = 1,
    ) -> str:
        """Return the forecast of the time, as `about 5 min` or a range, for so many parallel workers."""
        judging_s = self.judging_s(judgements) / judges
        low_s = self.seconds(tasks, is_quiet=True) / rounds_at_once + judging_s
        slowdown = 1.0 if self._records else 1 + self.load_per_core
        return approximate_range(low_s, self.seconds(tasks) / rounds_at_once + judging_s * slowdown)

    def begin(self, task: Task, given_up: Collection[tuple[str, int]]) -> str:
        """Count a task as begun, and return `[round 1/3, 2 of 6] int8 (about 5 min left)`."""
        remaining = without_given_up(self._left, given_up)
        self._left = [later for later in remaining if (later.round, later.variant) != (task.round, task.variant)]
        self._begun += 1
        tasks = [task, *self._left]
        rounds_at_once = min(self.workers, len(tasks))
        left = self.duration(tasks, self.judgements, rounds_at_once=rounds_at_once, judges=self.workers)
        position = f"[round {task.round + 1}/{self.rounds}, {self._begun} of {self._begun + len(self._left)}]"
        return f"{position} {task.variant} ({left} left)"

    def begin_judgement(self, name: str, variants: tuple[str, ...]) -> str:
        """Return `[quality 2/4] int8 (about 3 min left)`."""
        number = self.judgements.index(variants)
        judgements = self.judgements[number:]
        left = self.duration([], judgements, judges=min(self.workers, len(judgements)))
        return f"[{name} {number + 1}/{len(self.judgements)}] {', '.join(variants)} ({left} left)"


def first_process_s(record: RunRecord, ended: float) -> float:
    """Return the seconds that only a variant's first process needs: for the profile, and for set-up that is cached."""
    timed = [cell.timed_at[1] for cell in record.cells if cell.timed_at]
    if not timed:
        return 0.0
    once_s = max(0.0, ended - max(timed) - EXIT_S)
    if record.setup_s:
        opened_at = record.opened_at or max(timed)
        repeats_s = sum(sample.latency_s for cell in record.cells for sample in (*cell.warmup, *cell.samples))
        once_s += CACHED_SHARE * max(record.setup_s, max(timed) - opened_at - repeats_s)
    return once_s


def judged_groups(jobs: Mapping[str, Job]) -> list[tuple[str, ...]]:
    """Return the groups of variants that share one untimed measurement, such as quality."""
    judged = ((name, job, workload_of(job.workload).judging()) for name, job in jobs.items())
    groups = grouped((form, name) for name, job, judging in judged if judging and (form := judging.form(job)))
    return list(map(tuple, groups.values()))


def local_numbers(places: str) -> list[int] | None:
    """Return the GPU numbers in `local:0,1`; None for `ray`."""
    if places == RAY:
        return None
    if not re.fullmatch(LOCAL + r"\d+(,\d+)*", places):
        remedy = "give 'local:0,1' for this host's GPUs by number, or 'ray'"
        raise SpecError(f"--places {places}: no such workers; {remedy}")
    numbers = [int(number) for number in places.removeprefix(LOCAL).split(",")]
    if len(set(numbers)) < len(numbers):
        raise SpecError(f"--places {places}: contains a number twice")
    return numbers


def plan_lines(request: SweepRequest, schedule: Schedule) -> list[str]:
    """Return lines with the sweep's variants, cells, workers and a first guess of the time; raises SpecError."""
    places, file, jobs = request.settings.places, request.file, list(request.jobs.values())
    numbers = local_numbers(places) if places else None
    workers = min(len(numbers), file.rounds) if numbers else 1
    tasks = missing_tasks(request.jobs, range(file.rounds), file.seed, finished=())
    workload = workload_of(jobs[0].workload)
    rounds, cells = plural(file.rounds, "round", "rounds"), sum(len(task.cells) for task in tasks)
    if file.max_rounds is not None and file.max_rounds > file.rounds:
        rounds += f" (up to {file.max_rounds} while an interval is wide)"
    # A worker measures entire rounds: with three rounds and two workers, one round runs alone.
    rounds_at_once = file.rounds / math.ceil(file.rounds / workers)
    guess = schedule.duration(tasks, schedule.judgements, rounds_at_once=rounds_at_once, judges=workers)
    others = f" ({schedule.load_per_core:.1f} other programs per core; rounds that they disturb are left out)"
    load = others if schedule.load_per_core >= BUSY_LOAD else ""
    # A resumed sweep prints a forecast of the missing cells when it has read the records.
    forecast = "" if request.before else f", first guess: {guess}{load}"
    lines = [
        f"plan: {rounds} of {', '.join(request.jobs)}",
        f"  {workload.grid_heading}: {'; '.join(map(workload.point_text, jobs[0].grid.points()))}",
        f"  {plural(len(tasks), 'process', 'processes')}, {plural(cells, 'cell', 'cells')}{forecast}",
    ]
    for entry in jobs[0].grid.exclude:
        if jobs[0].grid.model_copy(update={"exclude": (entry,)}).points() == list(jobs[0].grid.combinations()):
            cell = ", ".join(f"{axis} {value}" for axis, value in entry.items())
            lines.append(f"  exclude: no cell has {cell}; this entry has no effect")
    if places:
        parallel = plural(workers, "round at a time", "rounds at a time") if numbers else RAY_ROUNDS
        if numbers and (unused := len(numbers) - workers):
            parallel += f"; {plural(unused, 'worker is', 'workers are')} not used: a worker measures entire rounds"
        lines.append(f"  at {places}: {parallel}; each host prepares its checkpoints first")
    lines.append(f"  order rotated, and reversed in every second round; seed {file.seed}")
    if (judging := workload.judging()) and schedule.judgements:
        words = judging.words(request.jobs[schedule.judgements[0][0]])
        lines.append(f"  then {judging.name} ({words}), once for each quantization and engine")
    lines += dict.fromkeys(f"  {job.slowness}" for job in jobs if job.slowness)
    # The libraries of other hosts are unknown.
    reasons = {} if places else {name: workload.lacking(job) for name, job in request.jobs.items()}
    return lines + [f"  {name} cannot run here: {reason}" for name, reason in reasons.items() if reason]


def widths_of(sweep: Sweep, baseline: str | None) -> tuple[dict[str, float], dict[str, float]]:
    """Return the relative width of each variant's widest interval, of device-bound and of host-bound variants."""
    device: dict[str, float] = {}
    host: dict[str, float] = {}
    try:
        records = [record for record in collect([sweep.folder]).records if record.sweep == sweep.started_at]
        results = results_of_records(records, sweep_baseline=baseline, force=True) if records else None
    except ResultsError:
        results = None
    for row in results.rows if results else ():
        ratio = row.speed_up.ratio if row.speed_up else None
        if results is None or ratio is None or ratio.low is None or ratio.high is None:
            continue
        variant = results.members[row.variant][0].variant.name
        job = sweep.jobs[variant]
        is_gpu = job.origin is not None and job.origin.environment.device.kind != "cpu"
        waits_for_host = is_gpu and getattr(job.variant, "engine", None) in HOST_BOUND_ENGINES
        side = host if waits_for_host else device
        side[variant] = max(side.get(variant, 0.0), (ratio.high - ratio.low) / ratio.value)
    return device, host


def enough_rounds(
    sweep: Sweep, baseline: str | None, rounds: int, limit: int | None, terminal: Terminal, *, count: int, is_late: bool
) -> int:
    """Return `rounds`, or `count` more, at most `limit`, if an interval is wide. Without a limit, none are added."""
    if limit is None or rounds < MIN_ROUNDS:
        return rounds
    widths, host_widths = widths_of(sweep, baseline)
    widest = max(widths.values(), default=0.0)
    is_wide = widest >= NARROW
    increased = min(limit, rounds + count)
    if is_wide and not is_late and increased > rounds:
        terminal.line(f"the widest interval is {_half(widest)}: adding rounds, up to {increased}")
        return increased
    for variant, width in host_widths.items():
        terminal.line(f"{variant}: host-bound, {_half(width)}")
    if widths:
        reason = f"; --max-time {sweep.settings.max_time_s:g} is up" if is_wide and is_late else ""
        terminal.line(f"{rounds} rounds: the widest interval is {_half(widest)}{reason}")
    return rounds


def _half(width: float) -> str:
    return f"±{percent(width / 2, places=1)}"
