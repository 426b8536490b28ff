"""Workers on this host: threads that start the measuring processes.

Without `--places` there is one worker. With `--places local:0,1` each card has one: its processes see this card alone
and run on its own share of the cores.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from benchmarker.core.errors import DeviceError
from benchmarker.schema.environment import Environment
from benchmarker.schema.job import Job
from benchmarker.sweep.folder import card_of
from benchmarker.sweep.interrupt import Stop
from benchmarker.sweep.prepare_host import prepare_host
from benchmarker.sweep.request import SweepRequest
from benchmarker.sweep.sweep_plan import LOCAL
from benchmarker.sweep.sweep_state import Equipment, Sweep
from benchmarker.sweep.workers.base import Ended, Line, Pool, Tools, Work, Worker, do, equip, why_unlike

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Variable for NVIDIA and, in torch for ROCm, for AMD too."""


class LocalPool(Pool):
    def __init__(self, numbers: Sequence[int], tools: Tools) -> None:
        """Start nothing yet.

        Args:
            numbers: GPUs with a worker each; none for one worker without a card of its own.
        """
        self._tools = tools
        self._numbers = numbers
        host = socket.gethostname()
        names = [f"{LOCAL}{number}" for number in numbers] or [None]
        self._workers = [Worker(name, host, slot, len(names)) for slot, name in enumerate(names)]
        self._environments: dict[str | None, Environment] = {}
        self._unfit: dict[str | None, str] = {}
        self._sweep: Sweep
        self._inboxes: dict[str | None, queue.SimpleQueue[tuple[Work, bool] | None]] = {}
        self._threads: list[threading.Thread] = []
        self._events: queue.SimpleQueue[Line | Ended] = queue.SimpleQueue()
        self._stop = Stop()

    def prepare(self, request: SweepRequest, print_line: Callable[[str], None]) -> tuple[Environment, str | None]:
        jobs = list(request.jobs.values())
        device, (first, *others) = jobs[0].device, self._workers
        # A resumed sweep goes on with the commit that it began with.
        commit = None if request.settings.resume else self._tools.look_for(jobs[0])
        if not self._numbers:
            self._environments[None] = prepare_host(device, command=self._tools.prepare_host)
        else:
            print_line(f"{first.name}: preparing the checkpoints")
            with ThreadPoolExecutor(len(self._workers)) as threads:
                futures = {worker: threads.submit(self._prepare, worker, device, [], print_line) for worker in others}
                self._environments[first.name] = self._prepare(first, device, jobs, print_line)
            for worker, future in futures.items():
                try:
                    self._environments[worker.name] = future.result()
                except DeviceError as error:
                    self._unfit[worker.name] = str(error)
        self._workers = [
            replace(worker, card=card_of(environment.device.uuid, worker.name))
            if (environment := self._environments.get(worker.name))
            else worker
            for worker in self._workers
        ]
        return self._environments[first.name], commit

    def _prepare(
        self, worker: Worker, device: str, jobs: Sequence[Job], print_line: Callable[[str], None]
    ) -> Environment:
        try:
            environment = prepare_host(
                device,
                jobs,
                command=self._tools.prepare_host,
                variables=self._variables(worker),
                print_line=lambda text: print_line(worker.line(text)),
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
            equipment = equip(
                self._sweep,
                worker,
                self._environments[worker.name],
                self._tools,
                lambda text: self._events.put(Line(worker, text)),
                variables=self._variables(worker),
                stop=self._stop,
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
        inbox = self._inboxes[worker.name]
        with equipment.in_use():
            while (item := inbox.get()) and not self._stop.requests:
                work, equipment.shares_host = item
                self._events.put(do(self._sweep, equipment, worker, work))


def visible_card(number: int, visible: str | None) -> str:
    """Return the name of a card for a process that is to see it alone.

    Args:
        number: Number of the card in this process.
        visible: Names of the cards that this process sees, separated by commas; None for all.
    """
    names = visible.split(",") if visible else []
    return names[number] if number < len(names) else str(number)
