"""The process that does one order at its place: `python -m benchmarker.sweep.places.worker FOLDER`.

It measures as a sweep of one round does, with the same retries, time limits and watching of the card. What is to be
delivered lies in the folder when it ends; a process that was killed leaves no delivery, and its round is run again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, nullcontext
from pathlib import Path

from benchmarker.core.console import Terminal
from benchmarker.core.errors import BenchmarkerError, DeviceError
from benchmarker.core.process import PARENT, end_with_parent
from benchmarker.execution.job_file import cell_keys, changed_files, read_job_file, with_origin, write_job
from benchmarker.hardware.host_load import HostGauge
from benchmarker.hardware.monitor import find_monitor
from benchmarker.schema.base import changed_fields
from benchmarker.schema.environment import Environment
from benchmarker.schema.job import Job
from benchmarker.schema.record_io import write_atomically
from benchmarker.schema.registry import workload_of
from benchmarker.sweep.child_process import starter_of
from benchmarker.sweep.judging import check_inputs, judge_variants
from benchmarker.sweep.live_table import LiveTable
from benchmarker.sweep.places.cores import pin
from benchmarker.sweep.places.engines import engine_refusal
from benchmarker.sweep.places.order import (
    DELIVERY,
    Delivery,
    FailureFacts,
    GivenUp,
    Order,
    jobs_in,
    read_order,
)
from benchmarker.sweep.places.place import LOCAL
from benchmarker.sweep.prepare_checkpoints import COMMIT
from benchmarker.sweep.probe import PROBE, look_around
from benchmarker.sweep.request import Settings, SweepRequest
from benchmarker.sweep.retries import Fault
from benchmarker.sweep.schedule import order as variants_in_order
from benchmarker.sweep.state import RUN, SweepContext, SweepState
from benchmarker.sweep.variant_round import measure

PREPARE = (sys.executable, "-m", "benchmarker.sweep.prepare_checkpoints")
CARD_FIELDS = ("device.index:", "device.uuid:", "variables.CUDA_VISIBLE_DEVICES:", "variables.HIP_VISIBLE_DEVICES:")
"""Which of several equal cards it is: no two places have the same."""


def serve(parcel: Path, terminal: Terminal) -> Delivery:
    """Do what the order in this folder says."""
    order, started = read_order(parcel), time.monotonic()
    pin(order.slot, order.slots)
    jobs = {name: read_job_file(path) for name, path in jobs_in(parcel, order.variants).items()}
    delivery = Delivery(place=order.place, card=order.card)
    try:
        environment = order.environments.get(order.card) or look_around(
            next(iter(jobs.values())).device, probe=order.probe or PROBE
        )
        delivery = delivery.model_copy(update={"environment": environment})
        if refused := engine_refusal(order, jobs.values()) or why_unlike(jobs.values(), environment):
            return delivery.model_copy(update={"refused": refused})
        if reason := why_no_card(order.place, jobs.values(), environment):
            raise DeviceError(reason)
        delivery = TASKS[order.task](order, delivery, parcel, jobs, terminal)
    except BenchmarkerError as error:
        return delivery.model_copy(update={"wrong": str(error)})
    return delivery.model_copy(update={"seconds": time.monotonic() - started})


def why_no_card(place: str, jobs: Iterable[Job], environment: Environment) -> str | None:
    """Why a place that names a GPU of this host cannot measure: there is no such GPU.

    None where there is one, and where the user asked for the processor.
    """
    is_auto = all(job.device == "auto" for job in jobs)
    if place.startswith(LOCAL) and is_auto and environment.device.kind == "cpu":
        return "this host has no such GPU (see 'benchmarker doctor'); --device cpu measures on its processor"
    return None


def why_unlike(jobs: Iterable[Job], environment: Environment) -> str | None:
    """What is not here as it was at the first place; None where nothing differs that a result depends on."""
    for job in jobs:
        origin = job.origin
        if origin is None or tuple(cell_keys(job, environment)) == origin.keys:
            continue
        changes = [
            change for change in changed_fields(origin.environment, environment) if not change.startswith(CARD_FIELDS)
        ]
        return "; ".join((changes or changed_files(job) or ["the model's files or benchmarker are others"])[:3])
    return None


def _visit(order: Order, delivery: Delivery, parcel: Path, jobs: Mapping[str, Job], terminal: Terminal) -> Delivery:
    """See that there is what the jobs need, and make the checkpoints. The jobs get their origin here, at the first."""
    if not order.prepares:
        return delivery
    check_inputs(jobs.values())
    command = [*(order.prepare or PREPARE), *map(str, jobs_in(parcel, order.variants).values())]
    last = ""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, PARENT: str(os.getpid())},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = line.strip() or last
            terminal.line(f"  {line.rstrip()}")
    if process.returncode:
        raise DeviceError(last.removeprefix("error: ") or f"preparing ended with {process.returncode}")
    commit_file = parcel / COMMIT
    commit = commit_file.read_text() if commit_file.exists() else order.commit
    assert delivery.environment is not None
    for job in jobs.values():
        if job.origin is None:
            planned = with_origin(
                job,
                delivery.environment,
                config=Path(order.sweep.config),
                config_sha256=order.config_sha256,
                commit=commit,
            )
            write_job(planned, parcel)
    return delivery


def _round(order: Order, delivery: Delivery, parcel: Path, jobs: Mapping[str, Job], terminal: Terminal) -> Delivery:
    """Measure every variant once, in the round's order."""
    context, state = _context(order, delivery, parcel, jobs, terminal)
    names = variants_in_order(order.variants, order.round, order.sweep.seed)
    with closing(context.starter), context.monitor.running() if context.monitor else nullcontext():
        for number, name in enumerate(names, 1):
            positions = range(len(context.points(name)))
            cells = [position for position in positions if (name, position) not in state.given_up]
            if cells:
                terminal.line(f"[round {order.round + 1}, {number} of {len(names)}] {name}")
                measure(context, state, terminal, variant=name, round_number=order.round, cells=cells)
    return _told(delivery, order, state)


def _judge(order: Order, delivery: Delivery, parcel: Path, jobs: Mapping[str, Job], terminal: Terminal) -> Delivery:
    """Measure what is measured apart from time, into the records that came along."""
    context, state = _context(order, delivery, parcel, jobs, terminal)
    with closing(context.starter):
        judge_variants(context, state, terminal)
    return _told(delivery, order, state)


def has_own_cores(order: Order) -> bool:
    """Whether nobody else of this sweep runs on this process's cores."""
    return order.slots == 1 or len(os.sched_getaffinity(0)) < (os.cpu_count() or 1)


TASKS = {"visit": _visit, "round": _round, "judge": _judge}


def _context(
    order: Order, delivery: Delivery, parcel: Path, jobs: Mapping[str, Job], terminal: Terminal
) -> tuple[SweepContext, SweepState]:
    """The sweep in this folder, and what it has learned so far."""
    assert delivery.environment is not None
    settings = Settings(
        load_timeout_s=order.load_timeout_s, cell_timeout_s=order.cell_timeout_s, allow_shared=order.allow_shared
    )
    request = SweepRequest(
        config=Path(order.sweep.config),
        config_sha256=order.config_sha256,
        arguments=order.sweep.arguments,
        display=order.display,
        jobs=jobs,
        saved=(),
        baseline=order.sweep.baseline or order.variants[0],
        rounds=order.sweep.rounds,
        max_rounds=None,
        seed=order.sweep.seed,
        folder=parcel,
        before=None,
        notes=(),
    )
    context = SweepContext(
        request=request,
        settings=settings,
        environment=delivery.environment,
        folder=parcel,
        monitor=find_monitor(delivery.environment),
        deadline_s=None,
        sweep=order.sweep,
        jobs=jobs,
        run=order.run or RUN,
        starter=starter_of(
            workload_of(next(iter(jobs.values())).workload), terminal, shared_imports=order.shared_imports
        ),
        place=order.place,
        # Places that share cores disturb each other, and say so otherwise.
        watch_host=HostGauge if order.run is None and has_own_cores(order) else None,
        beside=order.beside,
    )
    state = SweepState(LiveTable(context.workload))
    state.given_up |= {(cell.variant, cell.position): Fault(cell.kind, cell.reason) for cell in order.given_up}
    state.profiled |= set(order.profiled)
    state.cell_s |= {(variant, position): longest_s for variant, position, longest_s in order.cell_s}
    return context, state


def _told(delivery: Delivery, order: Order, state: SweepState) -> Delivery:
    """What this place has learned."""
    before = {(cell.variant, cell.position) for cell in order.given_up}
    return delivery.model_copy(
        update={
            "given_up": tuple(
                GivenUp(variant=variant, position=position, kind=fault.kind, reason=fault.reason)
                for (variant, position), fault in state.given_up.items()
                if (variant, position) not in before
            ),
            "profiled": tuple(sorted(state.profiled)),
            "cell_s": tuple((*cell, longest_s) for cell, longest_s in state.cell_s.items()),
            "failures": tuple(
                FailureFacts(
                    what=failure.what,
                    kind=failure.fault.kind,
                    reason=failure.fault.reason,
                    log=failure.log.name,
                    tail=failure.tail,
                    alone=failure.alone,
                )
                for failure in state.failures
            ),
        }
    )


def main() -> None:
    """Do the order in the folder that is named."""
    end_with_parent()
    parcel = Path(sys.argv[1])
    delivery = serve(parcel, Terminal())
    write_atomically(parcel / DELIVERY, delivery.model_dump_json())


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
