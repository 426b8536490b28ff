"""Workers on this host: threads that start the measuring processes.

Without `--places` there is one worker. With `--places local:0,1` each card has one: its processes see this card alone
and run on its own share of the cores.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path

from benchmarker.core.errors import DeviceError
from benchmarker.execution.job_file import write_job
from benchmarker.schema.record import Environment
from benchmarker.sweep.child import Stop
from benchmarker.sweep.folder import card_of
from benchmarker.sweep.prepare_host import prepare_host
from benchmarker.sweep.request import SweepRequest
from benchmarker.sweep.starter import Starter, shared_modules
from benchmarker.sweep.sweep_plan import LOCAL
from benchmarker.sweep.sweep_state import Equipment
from benchmarker.sweep.workers.base import (
    Ended,
    Line,
    Session,
    Tools,
    Work,
    Worker,
    do,
    own_cores,
    why_unlike,
)

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Variable for NVIDIA and, in torch for ROCm, for AMD too."""
JOIN_S = 0.1


class LocalPool:
    """Workers on this host; see `Pool`."""

    def __init__(self, numbers: Sequence[int] | None, tools: Tools) -> None:
        """Start nothing yet.

        Args:
            numbers: GPUs with a worker each; None for one worker without a card of its own.
        """
        self._tools = tools
        self._numbers = tuple(numbers or ())
        host = socket.gethostname()
        names: list[str | None] = [f"{LOCAL}{number}" for number in self._numbers]
        names = names or [None]
        self._workers = [Worker(name, host, slot, len(names)) for slot, name in enumerate(names)]
        self._environments: dict[str | None, Environment] = {}
        self._unfit: dict[str | None, str] = {}
        self._session: Session
        self._inboxes: dict[str | None, queue.SimpleQueue[tuple[Work, bool] | None]] = {}
        self._threads: list[threading.Thread] = []
        self._events: queue.SimpleQueue[Line | Ended] = queue.SimpleQueue()
        self._stop = Stop()

    def prepare(self, request: SweepRequest, print_line: Callable[[str], None]) -> tuple[Environment, str | None]:
        jobs = list(request.jobs.values())
        # A resumed sweep goes on with the commit that it began with.
        commit = None if request.settings.resume else self._tools.look_for(jobs[0])
        first, *others = self._workers
        if not self._numbers:
            self._environments[None] = prepare_host(jobs[0].device, command=self._tools.prepare_host)
        else:
            print_line(f"{first.name}: preparing the checkpoints")
            with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(self._workers)) as threads:
                files = [write_job(job.model_copy(update={"origin": None}), Path(folder)) for job in jobs]
                futures = {
                    worker: threads.submit(self._look, worker, jobs[0].device, (), print_line) for worker in others
                }
                self._environments[first.name] = self._look(first, jobs[0].device, files, print_line)
                for worker, future in futures.items():
                    try:
                        self._environments[worker.name] = future.result()
                    except DeviceError as error:
                        self._unfit[worker.name] = str(error)
        self._workers = [self._with_card(worker) for worker in self._workers]
        return self._environments[first.name], commit

    def _look(
        self, worker: Worker, device: str, files: Sequence[Path], print_line: Callable[[str], None]
    ) -> Environment:
        """Return the environment of a card."""

        def print_name(text: str) -> None:
            print_line(worker.line(text))

        try:
            environment = prepare_host(
                device,
                files,
                command=self._tools.prepare_host,
                variables=self._variables(worker),
                print_line=print_name,
            )
        except DeviceError as error:
            raise DeviceError(f"{worker.name}: {error}") from error
        if device == "auto" and environment.device.kind == "cpu":
            raise DeviceError(
                f"{worker.name}: this host has no such GPU (see 'benchmarker doctor'); "
                "--device cpu measures on its processor"
            )
        return environment

    def _variables(self, worker: Worker) -> dict[str, str]:
        if not self._numbers:
            return {}
        return {VISIBLE: visible_card(self._numbers[worker.slot], os.environ.get(VISIBLE))}

    def _with_card(self, worker: Worker) -> Worker:
        environment = self._environments.get(worker.name)
        card = card_of(environment.device.uuid, worker.name) if environment else None
        return Worker(worker.name, worker.host, worker.slot, worker.slots, card)

    def begin(self, session: Session) -> None:
        self._session = session
        for worker in self._workers if self._numbers else ():
            environment = self._environments.get(worker.name)
            if environment and (difference := why_unlike(session.sweep.jobs.values(), environment)):
                self._unfit[worker.name] = f"{worker.name}: left out: {difference}"
        for worker in list(self._workers):
            if reason := self._unfit.get(worker.name):
                self._workers.remove(worker)
                self._events.put(Line(Worker(None, worker.host), reason))

    def workers(self) -> Sequence[Worker]:
        return self._workers

    def is_preparing(self) -> bool:
        return False

    def start(self, worker: Worker, work: Work, *, shares_host: bool) -> None:
        if worker.name not in self._inboxes:
            self._inboxes[worker.name] = queue.SimpleQueue()
            thread = threading.Thread(target=self._serve, args=(worker, self._equip(worker)), daemon=True)
            thread.start()
            self._threads.append(thread)
        self._inboxes[worker.name].put((work, shares_host))

    def events(self, timeout_s: float) -> list[Line | Ended]:
        with contextlib.suppress(queue.Empty):
            return [self._events.get(timeout=timeout_s)]
        return []

    def stop(self) -> None:
        self._stop.request()
        for inbox in self._inboxes.values():
            inbox.put(None)
        for thread in self._threads:
            while thread.is_alive():
                try:
                    thread.join(JOIN_S)
                except KeyboardInterrupt:
                    self._stop.request()

    def _equip(self, worker: Worker) -> Equipment:
        def print_line(text: str) -> None:
            self._events.put(Line(worker, text))

        sweep, environment = self._session.sweep, self._environments[worker.name]
        modules = shared_modules(sweep.workload, shared_imports=sweep.settings.shared_imports)
        has_own_cores = worker.slots == 1 or bool(own_cores(worker.slot, worker.slots))
        return Equipment(
            name=worker.name,
            environment=environment,
            monitor=self._tools.find_monitor(environment),
            # Workers that share cores disturb each other, which the flag shared_host records.
            watch_host=self._tools.watch_host if has_own_cores else None,
            starter=Starter(modules, variables=self._variables(worker), print_line=print_line),
            print_line=print_line,
            stop=self._stop,
        )

    def _serve(self, worker: Worker, equipment: Equipment) -> None:
        """Do the work in the inbox until the pool is stopped. The thread's children inherit its cores."""
        if worker.slots > 1 and (share := own_cores(worker.slot, worker.slots)):
            os.sched_setaffinity(0, share)
        monitor, inbox = equipment.monitor, self._inboxes[worker.name]
        with closing(equipment.starter), monitor.running() if monitor else nullcontext():
            while (item := inbox.get()) and not self._stop.requests:
                work, equipment.shares_host = item
                self._events.put(do(self._session, equipment, worker, work))


def visible_card(number: int, visible: str | None) -> str:
    """Return the name of a card for a process that is to see it alone.

    Args:
        number: Number of the card in this process.
        visible: Names of the cards that this process sees, separated by commas; None for all.
    """
    names = visible.split(",") if visible else []
    return names[number] if number < len(names) else str(number)
