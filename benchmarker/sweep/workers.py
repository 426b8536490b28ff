"""Workers of a sweep: the interface `Pool` for the sweep's loop, and the workers on this host.

A worker measures one round, or the quality of one quantization, at a time, by the function `do`. A worker on this host
is a thread that starts the measuring processes. Without `--places` there is a single worker. `--places local:0,1` makes
one for each GPU; the processes of such a worker use only its GPU and its share of the cores.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from benchmarker.core.errors import DeviceError, SpecError
from benchmarker.execution.jobs import differences
from benchmarker.hardware.monitor import HostGauge, Monitor, Surroundings, find_monitor, load_per_core
from benchmarker.schema.job import Job
from benchmarker.schema.record import Environment
from benchmarker.schema.registry import workload_of
from benchmarker.sweep.attempt import measure_round
from benchmarker.sweep.child import SweepInterruptedError, SweepInterruption
from benchmarker.sweep.fork_server import Starter, shared_modules
from benchmarker.sweep.judge_quality import Judgement, judge
from benchmarker.sweep.prepare_host import PREPARE_HOST, prepare_host
from benchmarker.sweep.request import SweepRequest
from benchmarker.sweep.sweep_plan import LOCAL, Task
from benchmarker.sweep.sweep_state import RUN, Equipment, Sweep

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Variable that selects the GPUs of a process: of NVIDIA, and of AMD in torch for ROCm."""


@dataclass(frozen=True)
class Tools:
    """Commands and functions that a sweep uses; tests replace them by faster ones."""

    run: tuple[str, ...] = RUN
    prepare_host: tuple[str, ...] = PREPARE_HOST
    find_monitor: Callable[[Environment], Monitor | None] = find_monitor
    watch_host: Callable[[int], HostGauge] | None = HostGauge
    look_for: Callable[[Job], str | None] = lambda job: workload_of(job.workload).look_for(job)
    load_per_core: Callable[[], float] = load_per_core
    surroundings: Callable[[], Surroundings] = Surroundings


@dataclass(frozen=True)
class Worker:
    name: str | None
    """`local:1` or `node3/0`; None for the single worker without `--places`."""
    host: str
    slot: int = 0
    slots: int = 1
    card: str | None = None
    """UUID of the worker's GPU, or the worker's name. None on Ray, which assigns a GPU to each task."""

    def line(self, text: str) -> str:
        return f"{self.name} | {text}" if self.name else text


@dataclass(frozen=True)
class Round:
    """Work that consists of the missing tasks of a round."""

    number: int
    tasks: tuple[Task, ...] = field(compare=False)

    def __str__(self) -> str:
        return f"round {self.number + 1}"


Work = Round | Judgement


@dataclass(frozen=True)
class Line:
    worker: Worker
    text: str


@dataclass(frozen=True)
class Ended:
    """Work that ended: normally, or with one of `lost`, `unfit` and `error`."""

    worker: Worker
    work: Work
    lost: str | None = None
    """Cause of the worker's death, after which the work is done again; None if the worker lives."""
    unfit: str | None = None
    """Reason for which the worker can measure nothing of this sweep; another worker gets the work."""
    error: BaseException | None = None


class Pool(Protocol):
    def prepare(self, request: SweepRequest, print_line: Callable[[str], None]) -> tuple[Environment, str | None]:
        """Check the device, prepare the checkpoints, and return the environment and the model's hub commit."""

    def begin(self, sweep: Sweep) -> None: ...

    def workers(self) -> Sequence[Worker]:
        """Return the workers that are ready now. A cluster loses and gains hosts."""

    def is_preparing(self) -> bool:
        return False

    def start(self, worker: Worker, work: Work, *, shares_host: bool) -> None:
        """Give work to an idle worker, whose host measures other work at the same time if `shares_host` is True."""

    def events(self, timeout_s: float) -> list[Line | Ended]:
        """Wait for a line or ended work, at most `timeout_s`, and return all new ones."""

    def stop(self) -> None: ...


def check_devices(jobs: Iterable[Job]) -> None:
    """Raise SpecError for a job that selects a GPU or uses several, because `--places` gives each worker one GPU."""
    for job in jobs:
        if job.gpus > 1:
            several = f"{job.variant.name}: runs on {job.gpus} GPUs at once"
            raise SpecError(f"{several}, and a worker has one; leave --places out")
        if ":" in job.device:
            raise SpecError(f"--device {job.device}: --places selects the cards; leave --device out")


def why_unlike(jobs: Iterable[Job], environment: Environment) -> str | None:
    """Return the differences to the first worker's environment that affect results; None if there are none."""
    changes = (differences(job, environment) for job in jobs)
    return next(("; ".join(names[:3]) for names in changes if names), None)


def equip(
    sweep: Sweep,
    worker: Worker,
    environment: Environment,
    tools: Tools,
    print_line: Callable[[str], None],
    *,
    variables: Mapping[str, str] | None = None,
    stop: SweepInterruption | None = None,
) -> Equipment:
    """Return the equipment of a worker; `variables` are environment variables of its children."""
    modules = shared_modules(sweep.workload, shared_imports=sweep.settings.shared_imports)
    starter = Starter(modules, variables=variables, print_line=print_line)
    # Workers that share cores disturb each other, which the flag shared_host records.
    watch_host = tools.watch_host if worker.slots == 1 or cores_of(worker) else None
    monitor, stop = tools.find_monitor(environment), stop or SweepInterruption()
    return Equipment(worker.name, environment, monitor, watch_host, starter, print_line, stop)


def cores_of(worker: Worker) -> tuple[int, ...]:
    """Return the worker's share of this thread's cores; () if it uses all of them."""
    if worker.slots == 1:
        return ()
    return share_of(sorted(os.sched_getaffinity(0)), worker.slot, worker.slots)


@contextmanager
def on_cores_of(worker: Worker) -> Iterator[None]:
    """Run this thread, and the processes that it starts, on the worker's cores."""
    cores = cores_of(worker)
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def do(sweep: Sweep, equipment: Equipment, worker: Worker, work: Work) -> Ended:
    try:
        if isinstance(work, Judgement):
            judge(sweep, equipment, work)
        else:
            measure_round(sweep, equipment, work.tasks)
    except SweepInterruptedError:
        return Ended(worker, work, lost="it was stopped")
    except BaseException as error:  # noqa: BLE001  # the loop raises it in the main thread
        return Ended(worker, work, error=error)
    return Ended(worker, work)


def topology(core: int) -> tuple[int, ...]:
    numbers = [0, 0]
    for place, name in enumerate(("physical_package_id", "core_id")):
        with contextlib.suppress(OSError, ValueError):
            numbers[place] = int(Path(f"/sys/devices/system/cpu/cpu{core}/topology/{name}").read_text())
    return *numbers, core


def share_of(cores: Sequence[int], slot: int, slots: int) -> tuple[int, ...]:
    """Return the cores of worker `slot`; all `slots` workers get equally many, or () if there are too few cores."""
    # Cores of one socket, and the two threads of one core, stay together. Most hosts number GPUs by socket, too.
    each = len(cores) // slots
    return tuple(sorted(cores, key=topology)[slot * each : (slot + 1) * each])


class LocalPool(Pool):
    def __init__(self, numbers: Sequence[int], tools: Tools) -> None:
        """Create one worker per GPU number, or a single one that uses the jobs' device if there are no numbers."""
        self._tools, self._numbers = tools, numbers
        host = socket.gethostname()
        names: list[str | None] = [f"{LOCAL}{number}" for number in numbers] or [None]
        self._workers = [Worker(name, host, slot, len(names)) for slot, name in enumerate(names)]
        self._environments: dict[str | None, Environment] = {}
        self._unfit: dict[str | None, str] = {}
        self._sweep: Sweep
        self._inboxes: dict[str | None, queue.SimpleQueue[tuple[Work, bool] | None]] = {}
        self._threads: list[threading.Thread] = []
        self._events: queue.SimpleQueue[Line | Ended] = queue.SimpleQueue()
        self._stop = SweepInterruption()

    def prepare(self, request: SweepRequest, print_line: Callable[[str], None]) -> tuple[Environment, str | None]:
        jobs = list(request.jobs.values())
        device, (first, *others) = jobs[0].device, self._workers
        # A resumed sweep goes on with the commit that it began with.
        commit = None if request.settings.resume else self._tools.look_for(jobs[0])
        if not self._numbers:
            surroundings = self._tools.surroundings()
            found = prepare_host(device, command=self._tools.prepare_host)
            saved = next((job.origin.environment.threads for job in request.saved if job.origin), None)
            self._environments[None], line = surroundings.with_free_threads(found, saved=saved)
            if line:
                print_line(line)
        else:
            print_line(f"{first.name}: preparing the checkpoints")
            # An interruption does not wait for these threads. Their processes end with this one.
            threads = [
                threading.Thread(target=self._prepare_other, args=(worker, device, print_line), daemon=True)
                for worker in others
            ]
            for thread in threads:
                thread.start()
            self._environments[first.name] = self._prepare(first, device, jobs, print_line)
            for thread in threads:
                thread.join()
        for number, worker in enumerate(self._workers):
            if environment := self._environments.get(worker.name):
                self._workers[number] = replace(worker, card=environment.device.uuid or worker.name)
        return self._environments[first.name], commit

    def _prepare_other(self, worker: Worker, device: str, print_line: Callable[[str], None]) -> None:
        try:
            self._environments[worker.name] = self._prepare(worker, device, [], print_line)
        except DeviceError as error:
            self._unfit[worker.name] = str(error)

    def _prepare(
        self, worker: Worker, device: str, jobs: Sequence[Job], print_line: Callable[[str], None]
    ) -> Environment:
        command, variables = self._tools.prepare_host, self._variables(worker)

        def print_named(text: str) -> None:
            print_line(worker.line(text))

        try:
            # The environment has the number of the worker's cores, which is part of the cells' keys.
            with on_cores_of(worker):
                environment = prepare_host(device, jobs, command=command, variables=variables, print_line=print_named)
            if device == "auto" and environment.device.kind == "cpu":
                reason = "this host has no such GPU (see 'benchmarker doctor'); --device cpu measures on its processor"
                raise DeviceError(reason)
        except DeviceError as error:
            raise DeviceError(f"{worker.name}: {error}") from error
        return environment

    def _variables(self, worker: Worker) -> dict[str, str]:
        return {VISIBLE: visible_card(self._numbers[worker.slot], os.environ.get(VISIBLE))} if self._numbers else {}

    def begin(self, sweep: Sweep) -> None:
        self._sweep = sweep
        for worker in list(self._workers) if self._numbers else ():
            environment = self._environments.get(worker.name)
            reason = self._unfit.get(worker.name)
            if environment and (difference := why_unlike(sweep.jobs.values(), environment)):
                reason = f"{worker.name}: left out: {difference}"
            if reason:
                self._workers.remove(worker)
                self._events.put(Line(Worker(None, worker.host), reason))

    def workers(self) -> Sequence[Worker]:
        return self._workers

    def start(self, worker: Worker, work: Work, *, shares_host: bool) -> None:
        if worker.name not in self._inboxes:
            environment, variables = self._environments[worker.name], self._variables(worker)

            def print_line(text: str) -> None:
                self._events.put(Line(worker, text))

            equipment = equip(
                self._sweep, worker, environment, self._tools, print_line, variables=variables, stop=self._stop
            )
            self._inboxes[worker.name] = queue.SimpleQueue()
            self._threads.append(threading.Thread(target=self._serve, args=(worker, equipment), daemon=True))
            self._threads[-1].start()
        self._inboxes[worker.name].put((work, shares_host))

    def events(self, timeout_s: float) -> list[Line | Ended]:
        with contextlib.suppress(queue.Empty):
            return [self._events.get(timeout=timeout_s)]
        return []

    def stop(self) -> None:
        for inbox in self._inboxes.values():
            inbox.put(None)
        self._stop.request(self._threads)

    def _serve(self, worker: Worker, equipment: Equipment) -> None:
        with on_cores_of(worker), equipment.in_use():
            while (item := self._inboxes[worker.name].get()) and not self._stop.requests:
                work, equipment.shares_host = item
                self._events.put(do(self._sweep, equipment, worker, work))


def visible_card(number: int, visible: str | None) -> str:
    """Return CUDA_VISIBLE_DEVICES for a process that is to see only GPU `number` of this process's `visible` ones."""
    names = visible.split(",") if visible else []
    return names[number] if number < len(names) else str(number)
