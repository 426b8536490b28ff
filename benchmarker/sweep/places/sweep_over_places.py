"""A sweep over places, from the first visit to the last record."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarker.core.console import Terminal
from benchmarker.core.errors import DeviceError, SpecError
from benchmarker.core.formatting import plural
from benchmarker.execution.job_file import read_job_file
from benchmarker.schema.environment import Environment
from benchmarker.schema.job import Job
from benchmarker.sweep.folder import SweepFile, sweep_up
from benchmarker.sweep.judging import unjudged
from benchmarker.sweep.places.coordinator import TICK_S, Coordinator, Work
from benchmarker.sweep.places.engines import given_engines
from benchmarker.sweep.places.local import LocalPlaces
from benchmarker.sweep.places.order import Order, clear_parcels, jobs_in, read_delivery, write_parcel
from benchmarker.sweep.places.place import Ended, Place, Places, local_numbers
from benchmarker.sweep.places.whole_rounds import whole_rounds
from benchmarker.sweep.request import Settings, SweepRequest
from benchmarker.sweep.state import SweepContext, SweepState
from benchmarker.sweep.stopping import with_more_rounds


def open_places(settings: Settings) -> Places:
    """The places that were asked for.

    Raises:
        SpecError: There are no such places.
        MissingLibraryError: Ray is not installed.
        DeviceError: Ray has no GPU.
    """
    assert settings.places is not None
    numbers = local_numbers(settings.places)
    if numbers is not None:
        if settings.runtime_env:
            raise SpecError("--runtime-env goes with --places ray")
        return LocalPlaces(numbers)
    from benchmarker.sweep.places.ray_cluster import RayPlaces

    return RayPlaces(settings.runtime_env)


def check_devices(request: SweepRequest) -> None:
    """Refuse a device by number, and several at once: a place sees one card, and which it is says --places.

    Raises:
        SpecError: A job names one, or asks for several.
    """
    for name, job in request.jobs.items():
        if job.gpus > 1:
            raise SpecError(f"{name}: works on {job.gpus} GPUs at once, and a place has one; leave --places out")
        if ":" in job.device:
            raise SpecError(f"--device {job.device}: --places says which cards are used; leave --device out")


@dataclass(frozen=True)
class Visited:
    """The first host, when all is prepared there."""

    place: Place
    environment: Environment
    """That of the place, which all others must have too."""
    environments: dict[str, Environment]
    """Of the host's cards."""
    jobs: dict[str, Job]
    """With what their processes are to find."""


def first_visit(places: Places, template: Order, request: SweepRequest, terminal: Terminal) -> Visited:
    """Prepare the first host, and look around at all of its places.

    Raises:
        DeviceError: It cannot be used, or what the jobs need is not there.
    """
    first, *others = (place for place in places.places() if place.host == places.places()[0].host)
    jobs = {name: job.model_copy(update={"origin": None}) for name, job in request.jobs.items()}
    terminal.line(f"{first.name}: looking around and preparing the checkpoints")
    with tempfile.TemporaryDirectory() as home:
        parcels = {place: Path(home) / str(place.slot) for place in (first, *others)}
        for place, parcel in parcels.items():
            where = {"place": place.name, "card": place.name, "slot": place.slot, "slots": place.slots}
            order = template.model_copy(update={**where, "prepares": place == first})
            write_parcel(parcel, order, jobs)
            places.start(place, parcel, order)
        environments: dict[str, Environment] = {}
        first_environment: Environment | None = None
        for over in _all_ended(places, len(parcels), terminal):
            delivery = None if over.lost else read_delivery(over.parcel)
            wrong = over.lost if delivery is None else delivery.wrong or delivery.refused
            if delivery and delivery.environment and not wrong:
                environments[delivery.card] = delivery.environment
                first_environment = delivery.environment if over.place == first else first_environment
            elif over.place == first:
                raise DeviceError(f"{first.name}: {wrong}")
        files = {name: read_job_file(path) for name, path in jobs_in(parcels[first], template.variants).items()}
    assert first_environment is not None
    return Visited(first, first_environment, environments, files)


def _all_ended(places: Places, count: int, terminal: Terminal) -> list[Ended]:
    over: list[Ended] = []
    while len(over) < count:
        over += places.ended(TICK_S)
        for place, line in places.lines():
            terminal.line(f"{place.name} | {line}")
    return over


def template_of(
    request: SweepRequest, settings: Settings, sweep: SweepFile, *, commit: str | None, **dependencies: object
) -> Order:
    """An order with all that is the same in each."""
    return Order.model_validate(
        {
            "task": "visit",
            "place": "",
            "card": "",
            "sweep": sweep,
            "config_sha256": request.config_sha256,
            "commit": commit,
            "variants": tuple(request.jobs),
            "display": request.display,
            "engines": given_engines(),
            "load_timeout_s": float(settings.load_timeout_s),
            "cell_timeout_s": settings.cell_timeout_s,
            "allow_shared": settings.allow_shared,
            "shared_imports": settings.shared_imports,
            **dependencies,
        }
    )


def measure_at_places(
    context: SweepContext, state: SweepState, places: Places, template: Order, *, visited: Visited, terminal: Terminal
) -> None:
    """Measure the rounds that are missing in the folder, which is ours alone, and then what is measured after them.

    Raises:
        DeviceError: No place is left.
        KeyboardInterrupt: Ctrl-C.
        SweepTimeoutError: The sweep's time is up.
    """
    coordinator = Coordinator(
        context,
        state,
        places,
        terminal,
        template=template.model_copy(update={"environments": visited.environments}),
        prepared=visited.place.host,
        show=lambda words: terminal.pin(f"\n{_table(context, state)}\n{words}"),
    )
    finished = open_rounds(context, state, terminal)
    names, started = tuple(context.jobs), time.monotonic()
    works = [Work("round", names, number) for number in range(context.request.rounds) if number not in finished]
    coordinator.run(works)
    while more := with_more_rounds(context, len(places.places()), terminal):
        coordinator.run([Work("round", names, number) for number in range(context.request.rounds, more.request.rounds)])
        context = more
    if coordinator.rounds_of:
        each = ", ".join(f"{name}: {count}" for name, count in sorted(coordinator.rounds_of.items()))
        rounds = plural(sum(coordinator.rounds_of.values()), "round", "rounds")
        terminal.line(f"{rounds} took {time.monotonic() - started:.0f} s ({each})")
    coordinator.run([Work("judge", variants, records=tuple(wanted)) for variants, wanted in unjudged(context).items()])
    terminal.pin(f"\n{_table(context, state)}")


def open_rounds(context: SweepContext, state: SweepState, terminal: Terminal) -> frozenset[int]:
    """The rounds that are there, with what they tell."""
    sweep_up(context.folder)
    clear_parcels(context.folder)
    reusable = whole_rounds(context.folder, context.jobs, context.keys(), rounds=context.request.rounds)
    for note in reusable.notes:
        terminal.line(note)
    if context.settings.resume:
        terminal.line(f"{len(reusable.rounds)} of {context.request.rounds} rounds are there already")
    for record in reusable.records:
        if record.profile:
            state.profiled.add(record.variant.name)
        positions = {key: position for position, key in enumerate(context.keys()[record.variant.name])}
        for cell in record.cells:
            if cell.key in positions:
                state.live_table.take(record.variant.name, positions[cell.key], cell)
    return reusable.rounds


def _table(context: SweepContext, state: SweepState) -> str:
    shapes = [context.workload.point_text(point) for point in next(iter(context.jobs.values())).grid.points()]
    return state.live_table.table(list(context.jobs), shapes)
