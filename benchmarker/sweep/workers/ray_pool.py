"""Workers on Ray: every GPU of a running cluster, or of this host if there is no cluster.

Work goes out as a task that holds one GPU. Its files come back through Ray's object store, so that no disk is shared.
Ray itself repeats a task whose worker or host died; the loop repeats the others.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarker.core.errors import DeviceError, MissingLibraryError, SpecError, install_hint
from benchmarker.schema.record import Environment
from benchmarker.schema.record_io import RUN_ORDER, append_lines, write_atomically
from benchmarker.sweep.folder import read_new_records
from benchmarker.sweep.judge_quality import Judgement
from benchmarker.sweep.request import SweepRequest
from benchmarker.sweep.workers.base import Ended, Line, Session, Tools, Work, Worker
from benchmarker.sweep.workers.ray_task import (
    SET_BY_RAY,
    LineQueue,
    RemoteResult,
    RemoteWork,
    Setting,
    measure,
    own_engines,
    prepare_worker_host,
)

RETRIES = 2
"""Repetitions by Ray of a task whose worker or host died."""
END_S = 20.0
"""Time for stopped tasks to end by themselves."""


@dataclass(frozen=True)
class Running:
    worker: Worker
    work: Work | None
    """None for the preparation of a host."""
    profiled: frozenset[str] = frozenset()
    """Variants whose profile the task does not make."""


class RayPool:
    """GPUs of a Ray cluster; see `Pool`."""

    def __init__(self, runtime_env: Path | None, tools: Tools) -> None:
        """Connect to the cluster, or start one with this host's GPUs; raises MissingLibraryError or DeviceError."""
        self._ray = _import_ray()
        self._tools = tools
        _connect(self._ray, _read_runtime_env(runtime_env))
        if not workers_of(self._ray.nodes()):
            self._ray.shutdown()
            raise DeviceError("--places ray: the cluster has no GPU; 'ray status' shows its resources")
        # On this host, so that it lives as long as the sweep, and takes no share of a measuring host.
        here = self._near(self._ray.get_runtime_context().get_node_id())
        self._lines = self._ray.remote(num_cpus=0)(LineQueue).options(scheduling_strategy=here).remote()
        self._setting: Setting
        self._session: Session
        self._running: dict[Any, Running] = {}
        """Tasks by their references."""
        self._ready: set[str] = set()
        self._unfit: set[str] = set()
        """Hosts that cannot be used."""
        self._environments: dict[str, Environment] = {}
        self._events: deque[Line | Ended] = deque()

    def prepare(self, request: SweepRequest, print_line: Callable[[str], None]) -> tuple[Environment, str | None]:
        variables = {name: value for name, value in os.environ.items() if SET_BY_RAY.fullmatch(name)}
        self._setting = Setting(self._tools, request.jobs, variables, own_engines(), self._lines)
        first = workers_of(self._ray.nodes())[0]
        print_line(f"{first.name}: preparing the checkpoints")
        reference = self._submit(prepare_worker_host, first, "prepare", self._setting, first)
        while not self._ray.wait([reference], timeout=1.0)[0]:
            for line in self._new_lines():
                print_line(line.worker.line(line.text))
        try:
            result: RemoteResult = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise DeviceError(f"{first.name}: Ray lost it: {type(error).__name__}") from error
        if result.unfit or result.environment is None:
            raise DeviceError(f"{first.name}: {result.unfit}")
        self._ready.add(first.host)
        self._environments[result.card] = result.environment
        return result.environment, None if request.settings.resume else result.commit

    def begin(self, session: Session) -> None:
        self._session = session

    def workers(self) -> Sequence[Worker]:
        present = [worker for worker in workers_of(self._ray.nodes()) if worker.host not in self._unfit]
        preparing = {running.worker.host for running in self._running.values() if running.work is None}
        for worker in present:
            if worker.host not in {*self._ready, *preparing}:
                reference = self._submit(prepare_worker_host, worker, "prepare", self._setting, worker)
                self._running[reference] = Running(worker, None)
                preparing.add(worker.host)
        return [worker for worker in present if worker.host in self._ready]

    def is_preparing(self) -> bool:
        return any(running.work is None for running in self._running.values())

    def start(self, worker: Worker, work: Work, *, shares_host: bool) -> None:
        progress, schedule = self._session.progress, self._session.schedule
        profiled = self._profiled_elsewhere(work)
        task = RemoteWork(
            worker=worker,
            work=work,
            sweep=self._session.sweep,
            progress=progress.for_remote(profiled=set(profiled)),
            rounds=schedule.rounds,
            shares_host=shares_host,
            environments=self._environments,
            files={path.name: path.read_bytes() for path in work.records} if isinstance(work, Judgement) else {},
        )
        reference = self._submit(measure, worker, str(work), self._setting, task)
        self._running[reference] = Running(worker, work, frozenset(profiled))

    def events(self, timeout_s: float) -> list[Line | Ended]:
        if self._running:
            ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout_s)
        else:
            time.sleep(timeout_s)
            ready = []
        self._events += self._new_lines()
        for reference in ready:
            self._take(self._running.pop(reference), reference)
        events = list(self._events)
        self._events.clear()
        return events

    def stop(self) -> None:
        if not self._ray.is_initialized():
            return
        references = list(self._running)
        for is_forced in (False, True):
            for reference in references:
                self._ray.cancel(reference, force=is_forced)
            if references:
                _, references = self._ray.wait(references, num_returns=len(references), timeout=END_S)
        self._events += self._new_lines()
        self._running.clear()
        self._ray.shutdown()

    def _submit(self, function: Callable[..., RemoteResult], worker: Worker, name: str, *arguments: object) -> Any:
        task = self._ray.remote(function).options(
            num_gpus=1,
            num_cpus=cores_each(self._ray.nodes()),
            max_retries=RETRIES,
            name=name,
            scheduling_strategy=self._near(worker.host),
        )
        return task.remote(*arguments)

    def _profiled_elsewhere(self, work: Work) -> set[str]:
        """Return the variants whose profile this work does not make: it exists, or another task makes it.

        Profiles take as long as timing. Rounds that begin together share them in turns, because neighbours in a config
        often take equally long.
        """
        profiled = set(self._session.progress.profiled)
        if isinstance(work, Judgement):
            return profiled
        rounds = [running for running in self._running.values() if not isinstance(running.work, Judgement | None)]
        for running in rounds:
            profiled |= set(self._session.sweep.jobs) - running.profiled
        left = [task.variant for task in work.tasks if task.variant not in profiled]
        idle = max(1, len(self.workers()) - len(rounds))
        return profiled | (set(left) - set(left[::idle]))

    def _take(self, running: Running, reference: Any) -> None:
        """Turn the end of a task into an event."""
        worker, work = running.worker, running.work
        try:
            result: RemoteResult = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            result = RemoteResult(unfit=f"{type(error.cause).__name__}: {error.cause}")
        except self._ray.exceptions.RayError as error:
            if work is not None:
                self._events.append(Ended(worker, work, lost=f"Ray lost it: {type(error).__name__}"))
            return
        if result.environment:
            self._environments[result.card] = result.environment
        if work is None:
            if result.unfit:
                self._unfit.add(worker.host)
                self._events.append(Line(worker, f"left out: {result.unfit}"))
            else:
                self._ready.add(worker.host)
        elif result.unfit or result.error:
            self._events.append(Ended(worker, work, unfit=result.unfit, error=result.error))
        else:
            self._save(running, result)
            self._events.append(Ended(worker, work))

    def _save(self, running: Running, result: RemoteResult) -> None:
        sweep, progress = self._session.sweep, self._session.progress
        for name, content in result.files.items():
            if name == RUN_ORDER:
                append_lines(sweep.folder, content)
            else:
                write_atomically(sweep.folder / Path(name).name, content.decode(errors="replace"))
        if result.progress:
            progress.learn(result.progress, set(running.profiled), sweep.folder)
        if not isinstance(running.work, Judgement):
            for variant, position, cell in read_new_records(sweep.folder, list(result.files), sweep.keys()):
                progress.live_table.add(variant, position, cell)

    def _new_lines(self) -> list[Line]:
        with contextlib.suppress(self._ray.exceptions.RayError):
            workers = {worker.name: worker for worker in workers_of(self._ray.nodes())}
            lines = self._ray.get(self._lines.take.remote(), timeout=END_S)
            return [Line(workers.get(name) or Worker(name, name), line) for name, line in lines]
        return []

    def _near(self, host: str) -> Any:
        """Return a strategy that runs a task on this host, or on another one if the host is lost."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node_id=host, soft=True)


def workers_of(nodes: Sequence[Mapping[str, Any]]) -> tuple[Worker, ...]:
    """Return a worker for each GPU of each living host; Ray's id identifies the host."""
    living = [node for node in nodes if node["Alive"] and node["Resources"].get("GPU", 0) >= 1]
    return tuple(
        Worker(f"{_name(node, living)}/{slot}", host=node["NodeID"], slot=slot, slots=int(node["Resources"]["GPU"]))
        for node in living
        for slot in range(int(node["Resources"]["GPU"]))
    )


def cores_each(nodes: Sequence[Mapping[str, Any]]) -> int:
    """Return the cores that a task reserves: as many as the smallest host has for each of its GPUs, at least 1."""
    shares = [
        int(node["Resources"].get("CPU", 0) // node["Resources"]["GPU"])
        for node in nodes
        if node["Alive"] and node["Resources"].get("GPU", 0) >= 1
    ]
    return max(1, min(shares, default=1))


def _name(node: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> str:
    """Return the host's name, with the beginning of its id if two hosts have the same name."""
    name = str(node["NodeManagerHostname"])
    namesakes = [node for node in nodes if node["NodeManagerHostname"] == name]
    return f"{name}-{node['NodeID'][:6]}" if len(namesakes) > 1 else name


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingLibraryError(f"--places ray: Ray is not installed; {install_hint('ray')}") from error
    return ray


def _connect(ray: Any, runtime_env: dict[str, Any] | None) -> None:
    """Connect to the cluster that runs here or that RAY_ADDRESS names; else start one with this host's GPUs."""
    quiet = {"logging_level": "ERROR", "log_to_driver": False, "runtime_env": runtime_env}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address="auto", **quiet)
    except ConnectionError:
        ray.init(address="local", include_dashboard=False, **quiet)


def _read_runtime_env(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise SpecError(f"--runtime-env {path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise SpecError(f"--runtime-env {path}: is not a mapping, such as 'pip: [benchmarker]'")
    return content
