"""Hands rounds to places and takes in what they deliver: whole rounds, of which none is lost that was finished.

The parent sleeps while places measure. A place that is lost (a process, a host) costs its round, which is run again,
there or elsewhere; a place that is lost again and again gets no more.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarker.core.console import Terminal
from benchmarker.core.errors import DeviceError, ResultsError
from benchmarker.core.formatting import approximate_duration
from benchmarker.execution.job_file import is_job_file
from benchmarker.schema.collect import UNDER_WAY
from benchmarker.schema.environment import Environment
from benchmarker.schema.record import RunRecord
from benchmarker.schema.record_io import read_record
from benchmarker.sweep.child import SweepTimeoutError
from benchmarker.sweep.places.order import Delivery, GivenUp, Order, read_delivery, take_in, write_parcel
from benchmarker.sweep.places.place import Ended, Place, Places
from benchmarker.sweep.retries import Fault
from benchmarker.sweep.state import Failure, SweepContext, SweepState, now_id

TRIES = 3
"""How often a round is begun that its place did not live to deliver."""
LOSSES = 2
"""How often in succession a place may be lost."""
TICK_S = 0.5


@dataclass(frozen=True)
class Work:
    """What a place is given."""

    task: str
    variants: tuple[str, ...]
    round: int = 0
    records: tuple[Path, ...] = ()

    @property
    def words(self) -> str:
        return f"round {self.round + 1}" if self.task == "round" else f"{self.task} of {', '.join(self.variants)}"


@dataclass(frozen=True)
class Busy:
    """A place under way."""

    work: Work
    since_s: float
    profiled: frozenset[str]
    """Variants whose profile it was told not to make."""


class Coordinator:
    """The rounds that are still to be measured, and who measures which."""

    def __init__(
        self,
        context: SweepContext,
        state: SweepState,
        places: Places,
        terminal: Terminal,
        *,
        template: Order,
        prepared: str,
        show: Callable[[str], None],
    ) -> None:
        """Begin with nothing to do.

        Args:
            template: An order with all that is the same in each.
            prepared: Host whose checkpoints are ready.
            show: Shows the lines on the places, below all others.
        """
        self._context, self._state, self._places, self._terminal = context, state, places, terminal
        self._template = template
        self._ready = {prepared}
        self._unfit: set[str] = set()
        """Names of places, and hosts, that get nothing more."""
        self._losses: Counter[str] = Counter()
        self._tries: Counter[Work] = Counter()
        self._queue: list[Work] = []
        self._busy: dict[Place, Busy] = {}
        self._last: dict[Place, int] = {}
        self._last_lines: dict[Place, str] = {}
        self._environments: dict[str, Environment] = dict(template.environments)
        self._cells_s = {(variant, position): longest_s for variant, position, longest_s in template.cell_s}
        self._round_s: list[float] = []
        self._show = show
        self.records: list[RunRecord] = []
        """Of the rounds that were delivered."""
        self.rounds_of: Counter[str] = Counter()
        """Rounds that each place delivered."""

    def run(self, works: Sequence[Work]) -> None:
        """Have all of it done.

        Raises:
            DeviceError: No place is left.
            SweepTimeoutError: The sweep's time is up.
        """
        self._queue = list(works)
        while self._queue or any(busy.work.task != "visit" for busy in self._busy.values()):
            self._check_time()
            self._hand_out()
            over = self._places.ended(TICK_S)
            self._show_places()
            for ended in over:
                self._take(ended)

    def _check_time(self) -> None:
        if self._context.deadline_s is not None and time.monotonic() > self._context.deadline_s:
            raise SweepTimeoutError

    def _hand_out(self) -> None:
        places = [place for place in self._places.places() if not {place.name, place.host} & self._unfit]
        if not places and not self._busy:
            raise DeviceError(f"no place is left for {', '.join(work.words for work in self._queue)}")
        for place in places:
            if place in self._busy:
                continue
            if place.host not in self._ready:
                if not any(neighbour.host == place.host for neighbour in self._busy):
                    self._start(place, Work("visit", tuple(self._context.jobs)), places)
            elif self._queue:
                work = self._next(place)
                self._queue.remove(work)
                self._start(place, work, places)

    def _next(self, place: Place) -> Work:
        """The round that runs backwards after the one that ran forwards, so that a drift within them cancels."""
        last = self._last.get(place)
        partner = next((work for work in self._queue if last is not None and work.round == last + 1), None)
        if partner and last is not None and last % 2 == 0:
            return partner
        return next((work for work in self._queue if work.round % 2 == 0), self._queue[0])

    def _start(self, place: Place, work: Work, places: Sequence[Place]) -> None:
        others = [neighbour for neighbour in places if neighbour.host == place.host and neighbour != place]
        idle = [neighbour for neighbour in others if neighbour not in self._busy]
        ready = sum(one not in self._busy and one.host in self._ready for one in places)
        profiled = self._profiled_elsewhere(work, max(1, min(ready, 1 + len(self._queue))))
        card = place.name
        order = self._template.model_copy(
            update={
                "task": work.task,
                "place": place.name,
                "card": card,
                "slot": place.slot,
                "slots": place.slots,
                "beside": len(others) - len(idle) + min(len(idle), len(self._queue)),
                "variants": work.variants,
                "round": work.round,
                "given_up": tuple(
                    GivenUp(variant=variant, position=position, kind=fault.kind, reason=fault.reason)
                    for (variant, position), fault in self._state.given_up.items()
                ),
                "profiled": tuple(sorted(profiled)),
                "cell_s": tuple((*cell, longest_s) for cell, longest_s in self._cells_s.items()),
                "environments": self._environments,
            }
        )
        parcel = self._context.folder / f"{UNDER_WAY}{now_id()}"
        write_parcel(parcel, order, {name: self._context.job(name) for name in work.variants}, work.records)
        self._terminal.line(f"{place.name}: {work.words}")
        self._places.start(place, parcel, order)
        self._busy[place] = Busy(work, time.monotonic(), frozenset(profiled))
        self._last_lines.pop(place, None)
        if work.task == "round":
            self._last[place] = work.round

    def _profiled_elsewhere(self, work: Work, waiting: int) -> set[str]:
        """Variants whose profile and check of the step this round does not make: another did or does, or is about to.

        They take as long as timing, so that a round with all of them is the longest by far, and its place the last.
        Places that begin together share them, in turns: neighbours in a config often take equally long.

        Args:
            waiting: Places that begin a round now, this one too.
        """
        making = {
            variant
            for busy in self._busy.values()
            if busy.work.task == "round"
            for variant in set(busy.work.variants) - busy.profiled
        }
        left = [variant for variant in work.variants if variant not in self._state.profiled | making]
        own = left[::waiting]
        return self._state.profiled | making | (set(left) - set(own))

    def _take(self, ended: Ended) -> None:
        busy, place = self._busy.pop(ended.place), ended.place
        delivery = None if ended.lost else read_delivery(ended.parcel)
        if delivery is None:
            self._lose(place, busy.work, ended.lost or "it delivered nothing")
        elif why := delivery.wrong or delivery.refused:
            self._unfit.add(place.host if busy.work.task == "visit" else place.name)
            self._terminal.line(f"{place.name}: left out: {why}")
            if busy.work.task != "visit":
                self._queue.insert(0, busy.work)
        else:
            self._losses[place.name] = 0
            if delivery.environment:
                self._environments[delivery.card] = delivery.environment
            if busy.work.task == "visit":
                self._ready.add(place.host)
            else:
                self._keep(delivery, busy, ended.parcel)
                return
        shutil.rmtree(ended.parcel, ignore_errors=True)

    def _lose(self, place: Place, work: Work, why: str) -> None:
        self._losses[place.name] += 1
        self._tries[work] += 1
        if self._losses[place.name] >= LOSSES:
            self._unfit.add(place.name)
        if work.task == "visit":
            self._terminal.line(f"{place.name}: {why}")
        elif self._tries[work] < TRIES:
            self._terminal.line(f"{place.name}: {why}; {work.words} is run again")
            self._queue.insert(0, work)
        else:
            self._terminal.line(f"{place.name}: {why}; {work.words} is given up")
            self._state.failures.append(
                Failure(
                    work.words, Fault("crash", why), self._context.folder, (), self._context.alone(work.variants[0])
                )
            )

    def _keep(self, delivery: Delivery, busy: Busy, parcel: Path) -> None:
        """Take in what was delivered, and learn from it."""
        folder, state = self._context.folder, self._state
        names = [path.name for path in parcel.glob("*-round*.json") if not is_job_file(path)]
        take_in(parcel, folder)
        state.given_up |= {(cell.variant, cell.position): Fault(cell.kind, cell.reason) for cell in delivery.given_up}
        state.profiled |= set(delivery.profiled) - busy.profiled
        self._cells_s |= {(variant, position): longest_s for variant, position, longest_s in delivery.cell_s}
        state.failures += [
            Failure(
                failure.what, Fault(failure.kind, failure.reason), folder / failure.log, failure.tail, failure.alone
            )
            for failure in delivery.failures
        ]
        if busy.work.task != "round":
            return
        self._round_s.append(time.monotonic() - busy.since_s)
        self.rounds_of[delivery.place] += 1
        for name in sorted(names):
            try:
                record = read_record(folder / name)
            except ResultsError as error:
                self._terminal.line(f"{delivery.place}: {error}")
                continue
            self.records.append(record)
            self._stand(record)
        self._terminal.line(f"{delivery.place}: {busy.work.words} is done, {approximate_duration(self._round_s[-1])}")

    def _stand(self, record: RunRecord) -> None:
        keys = self._context.keys()[record.variant.name]
        for position, key in enumerate(keys):
            for cell in record.cells:
                if cell.key == key:
                    self._state.live_table.take(record.variant.name, position, cell)

    def _show_places(self) -> None:
        """What every place does, and how long it will take."""
        for place, line in self._places.lines():
            if line.startswith("["):
                self._last_lines[place] = line
            self._terminal.line(f"{place.name} | {line}")
        now = time.monotonic()
        lines = [
            f"{place.name}: {self._last_lines.get(place, busy.work.words)}, "
            f"for {approximate_duration(now - busy.since_s)}"
            for place, busy in self._busy.items()
        ]
        self._show("\n".join([*lines, self._left_words(now)]))

    def _left_words(self, now: float) -> str:
        rounds = [busy for busy in self._busy.values() if busy.work.task == "round"]
        words = f"{len(rounds)} rounds under way, {len(self._queue)} to come"
        if not self._round_s:
            return words
        mean_s = sum(self._round_s) / len(self._round_s)
        longest_s = max((mean_s - (now - busy.since_s) for busy in rounds), default=0.0)
        waves = -(-len(self._queue) // max(1, len(self._busy)))
        return f"{words}, {approximate_duration(max(0.0, longest_s) + waves * mean_s)} left"
