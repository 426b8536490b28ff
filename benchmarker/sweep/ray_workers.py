"""Workers on Ray: every GPU of a running cluster, or of this host if there is no cluster.

A round is a Ray task that reserves one GPU and measures in a temporary folder. Its files return through Ray's object
store, so that hosts share no disk. Ray repeats a task whose worker or host died; the sweep's loop repeats other tasks.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

import benchmarker
from benchmarker.core.errors import BenchmarkerError, DeviceError, MissingLibraryError, SpecError, install_hint
from benchmarker.engines.external.environments import environment_states
from benchmarker.execution.jobs import write_job
from benchmarker.schema.job import Job
from benchmarker.schema.record import Environment
from benchmarker.schema.record_io import RUN_ORDER, append_lines, write_atomically
from benchmarker.sweep.judge_quality import Judgement, check_inputs
from benchmarker.sweep.prepare_host import prepare_host
from benchmarker.sweep.request import SweepRequest, check_models
from benchmarker.sweep.sweep_plan import Schedule
from benchmarker.sweep.sweep_state import LiveTable, Progress, Sweep
from benchmarker.sweep.workers import Ended, Line, Pool, Tools, Work, Worker, do, equip, on_cores_of, why_unlike

STOP_LIMIT_S = 20.0
SET_BY_RAY = re.compile(r"(OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS")
"""Variables that Ray sets in its workers, and that a measurement depends on."""


class LineQueue:
    """Ray actor that passes output lines from the workers to the sweep."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, str]] = []

    def put(self, worker: str, line: str) -> None:
        self._lines.append((worker, line))

    def take(self) -> list[tuple[str, str]]:
        lines, self._lines = self._lines, []
        return lines


@dataclass(frozen=True)
class Setting:
    tools: Tools
    jobs: Mapping[str, Job]
    variables: Mapping[str, str]
    engines: Mapping[str, str]
    """Fingerprints of the environments of external engines that may be used, by name."""
    lines: Any
    environments: dict[str, Environment] = field(default_factory=dict)
    """Environments that earlier tasks determined, by GPU (`a1b2c3/0`)."""


@dataclass(frozen=True)
class Result:
    card: str = ""
    environment: Environment | None = None
    commit: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    progress: Progress | None = None
    lost: str | None = None
    unfit: str | None = None
    error: BaseException | None = None


@dataclass(frozen=True)
class Running:
    worker: Worker
    work: Work | None
    profiles: frozenset[str] = frozenset()
    """Variants that the task profiles; their profiles count as made until the task ends."""


class RayPool(Pool):
    def __init__(self, runtime_env: Path | None, tools: Tools) -> None:
        """Connect to the cluster that runs here or that RAY_ADDRESS names, or start one with this host's GPUs."""
        try:
            import ray
        except ImportError as error:
            raise MissingLibraryError(f"--places ray: Ray is not installed; {install_hint('ray')}") from error
        self._ray: Any = ray
        self._tools = tools
        quiet = {"logging_level": "ERROR", "log_to_driver": False, "runtime_env": _read_runtime_env(runtime_env)}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            self._ray.init(address="auto", **quiet)
        except ConnectionError:
            self._ray.init(address="local", include_dashboard=False, **quiet)
        if not workers_of(self._ray.nodes()):
            self._ray.shutdown()
            raise DeviceError("--places ray: the cluster has no GPU; 'ray status' shows its resources")
        # The queue runs on this host, so that it lives as long as the sweep and disturbs no measuring host.
        here = self._near(self._ray.get_runtime_context().get_node_id())
        self._lines = self._ray.remote(num_cpus=0)(LineQueue).options(scheduling_strategy=here).remote()
        self._setting: Setting
        self._sweep: Sweep
        self._running: dict[Any, Running] = {}
        self._is_usable: dict[str, bool] = {}
        self._events: list[Line | Ended] = []

    def prepare(self, request: SweepRequest, print_line: Callable[[str], None]) -> tuple[Environment, str | None]:
        variables = {name: value for name, value in os.environ.items() if SET_BY_RAY.fullmatch(name)}
        self._setting = Setting(self._tools, request.jobs, variables, engine_fingerprints(), self._lines)
        first = workers_of(self._ray.nodes())[0]
        print_line(f"{first.name}: preparing the checkpoints")
        reference = self._submit(prepare, first, "prepare", self._setting, first)
        while not self._ray.wait([reference], timeout=1.0)[0]:
            for line in self._new_lines():
                print_line(line.worker.line(line.text))
        result = self._result(reference)
        if result.lost or result.unfit or result.environment is None:
            raise DeviceError(f"{first.name}: {result.lost or result.unfit}")
        self._is_usable[first.host] = True
        self._setting.environments[result.card] = result.environment
        return result.environment, None if request.settings.resume else result.commit

    def begin(self, sweep: Sweep) -> None:
        self._sweep = sweep

    def workers(self) -> Sequence[Worker]:
        present = workers_of(self._ray.nodes())
        known = {*self._is_usable, *(running.worker.host for running in self._running.values() if not running.work)}
        for worker in present:
            if worker.host not in known:
                reference = self._submit(prepare, worker, "prepare", self._setting, worker)
                self._running[reference] = Running(worker, None)
                known.add(worker.host)
        return [worker for worker in present if self._is_usable.get(worker.host)]

    def is_preparing(self) -> bool:
        return any(running.work is None for running in self._running.values())

    def start(self, worker: Worker, work: Work, *, shares_host: bool) -> None:
        sweep, profiles, known = self._sweep, self._profiles_of(work), self._sweep.progress
        progress = Progress(LiveTable(sweep.workload), known.given_up, known.cell_s, set(sweep.jobs) - profiles)
        known.profiled |= profiles
        tasks, names = ((), work.records) if isinstance(work, Judgement) else (work.tasks, ())
        schedule = Schedule(sweep.jobs, shared_imports=sweep.settings.shared_imports)
        schedule.add(tasks, rounds=sweep.schedule.rounds)
        schedule.judgements = [] if tasks else sweep.schedule.judgements
        remote = replace(sweep, progress=progress, schedule=schedule)
        files = {name: (sweep.folder / name).read_bytes() for name in names}
        reference = self._submit(measure, worker, str(work), self._setting, worker, work, remote, shares_host, files)
        self._running[reference] = Running(worker, work, frozenset(profiles))

    def events(self, timeout_s: float) -> list[Line | Ended]:
        ready: list[Any] = []
        if self._running:
            ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout_s)
        else:
            time.sleep(timeout_s)
        self._events += self._new_lines()
        for reference in ready:
            self._take(self._running.pop(reference), self._result(reference))
        events, self._events = self._events, []
        return events

    def stop(self) -> None:
        if not self._ray.is_initialized():
            return
        references = list(self._running)
        for is_forced in (False, True):
            for reference in references:
                self._ray.cancel(reference, force=is_forced)
            if references:
                _, references = self._ray.wait(references, num_returns=len(references), timeout=STOP_LIMIT_S)
        self._events += self._new_lines()
        self._running.clear()
        self._ray.shutdown()

    def _submit(self, function: Callable[..., Result], worker: Worker, name: str, *arguments: object) -> Any:
        cores, affinity = cores_each(self._ray.nodes()), self._near(worker.host)
        task = self._ray.remote(function).options(
            num_gpus=1, num_cpus=cores, max_retries=2, name=name, scheduling_strategy=affinity
        )
        return task.remote(*arguments)

    def _profiles_of(self, work: Work) -> set[str]:
        if isinstance(work, Judgement):
            return set()
        # Profiling takes as long as timing: of rounds that begin together, each profiles a part of the variants.
        begun = sum(not isinstance(running.work, Judgement | None) for running in self._running.values())
        missing = [task.variant for task in work.tasks if task.variant not in self._sweep.progress.profiled]
        return set(missing[:: max(1, len(self.workers()) - begun)])

    def _result(self, reference: Any) -> Result:
        try:
            result: Result = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            result = Result(unfit=f"{type(error.cause).__name__}: {error.cause}")
        except self._ray.exceptions.RayError as error:
            result = Result(lost=f"Ray lost it: {type(error).__name__}")
        return result

    def _take(self, running: Running, result: Result) -> None:
        """Turn the end of a task into an event. The lost preparation of a host begins again."""
        worker, work = running.worker, running.work
        if result.environment:
            self._setting.environments[result.card] = result.environment
        if work is not None:
            made = result.progress.profiled if result.progress else set()
            self._sweep.progress.profiled -= running.profiles - made
            if not (result.lost or result.unfit or result.error):
                self._save(result)
            self._events.append(Ended(worker, work, lost=result.lost, unfit=result.unfit, error=result.error))
        elif not result.lost:
            self._is_usable[worker.host] = not result.unfit
            if result.unfit:
                self._events.append(Line(worker, f"left out: {result.unfit}"))

    def _save(self, result: Result) -> None:
        folder = self._sweep.folder
        for name, content in result.files.items():
            if name == RUN_ORDER:
                append_lines(folder, content)
            else:
                write_atomically(folder / Path(name).name, content.decode(errors="replace"))
        if result.progress:
            self._sweep.progress.learn(result.progress, folder)

    def _new_lines(self) -> list[Line]:
        with contextlib.suppress(self._ray.exceptions.RayError):
            workers = {worker.name: worker for worker in workers_of(self._ray.nodes())}
            lines = self._ray.get(self._lines.take.remote(), timeout=STOP_LIMIT_S)
            return [Line(workers.get(name) or Worker(name, name), line) for name, line in lines]
        return []

    def _near(self, host: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node_id=host, soft=True)


def workers_of(nodes: Sequence[Mapping[str, Any]]) -> tuple[Worker, ...]:
    """Return a worker for each GPU of each living host; Ray's id identifies the host."""
    hosts = [node for node in nodes if node["Alive"] and node["Resources"].get("GPU", 0) >= 1]
    namesakes = Counter(node["NodeManagerHostname"] for node in hosts)
    workers = []
    for node in hosts:
        name, count = node["NodeManagerHostname"], int(node["Resources"]["GPU"])
        if namesakes[name] > 1:
            name += f"-{node['NodeID'][:6]}"
        workers += [Worker(f"{name}/{slot}", host=node["NodeID"], slot=slot, slots=count) for slot in range(count)]
    return tuple(workers)


def cores_each(nodes: Sequence[Mapping[str, Any]]) -> int:
    """Return the cores that a task reserves: as many as the smallest host has for each of its GPUs, at least 1."""
    hosts = [node["Resources"] for node in nodes if node["Alive"] and node["Resources"].get("GPU", 0) >= 1]
    return max(1, min((int(host.get("CPU", 0) // host["GPU"]) for host in hosts), default=1))


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


def prepare(setting: Setting, worker: Worker) -> Result:
    (card, worker), jobs = _enter(setting, worker), list(setting.jobs.values())
    try:
        check_models(jobs)
        check_inputs(jobs)
        commit = setting.tools.look_for(jobs[0])
        print_line = partial(setting.lines.put.remote, worker.name)
        with on_cores_of(worker):
            environment = prepare_host(jobs[0].device, jobs, command=setting.tools.prepare_host, print_line=print_line)
    except BenchmarkerError as error:
        return Result(unfit=str(error))
    return Result(card, environment, commit, unfit=_refused_engine(setting))


def measure(
    setting: Setting, worker: Worker, work: Work, sweep: Sweep, shares_host: bool, files: Mapping[str, bytes]
) -> Result:
    (card, worker), jobs = _enter(setting, worker), sweep.jobs
    print_line = partial(setting.lines.put.remote, worker.name)
    device, command = next(iter(jobs.values())).device, setting.tools.prepare_host
    try:
        with on_cores_of(worker):
            environment = setting.environments.get(card) or prepare_host(device, command=command, print_line=print_line)
    except BenchmarkerError as error:
        return Result(unfit=str(error))
    if unfit := _refused_engine(setting) or why_unlike(jobs.values(), environment):
        return Result(unfit=unfit)
    with tempfile.TemporaryDirectory(prefix="benchmarker-") as home:
        sweep = replace(sweep, folder=Path(home))
        job_files = {write_job(job, sweep.folder) for job in jobs.values()}
        for name, content in files.items():
            (sweep.folder / name).write_bytes(content)
        try:
            equipment = equip(sweep, worker, environment, setting.tools, print_line)
            equipment.shares_host = shares_host
            with on_cores_of(worker), equipment.in_use():
                ended = do(sweep, equipment, worker, work)
            if ended.error:
                raise ended.error
        except BenchmarkerError as error:
            return Result(card, environment, error=error)
        visible = (path for path in sorted(sweep.folder.glob("[!.]*")) if path.is_file())
        contents = {path.name: path.read_bytes() for path in visible if path not in job_files}
        # Records are returned as files.
        return Result(card, environment, files=contents, progress=replace(sweep.progress, records=[]))


def _enter(setting: Setting, worker: Worker) -> tuple[str, Worker]:
    """Set the variables of the sweep's host in this process, and return the id of its GPU, such as `a1b2c3/0`.

    Ray selects the GPU, so the worker is returned with the share of the cores that belongs to this GPU.
    """
    import ray

    for name in filter(SET_BY_RAY.fullmatch, list(os.environ)):
        del os.environ[name]
    source = str(Path(benchmarker.__file__).parents[1])
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.update(setting.variables)
    os.environ["PYTHONPATH"] = os.pathsep.join([source, *(part for part in path if part and part != source)])
    context = ray.get_runtime_context()
    cards = context.get_accelerator_ids().get("GPU", [])
    number = int(cards[0]) if cards and str(cards[0]).isdigit() else worker.slot
    return f"{context.get_node_id()}/{number}", replace(worker, slot=number % worker.slots)


def engine_fingerprints() -> dict[str, str]:
    fingerprints = {}
    for state in environment_states():
        if state.problem is None:
            marker = state.interpreter
            by_hand = f"in {marker.python}, libraries in {marker.library}"
            source = f"from pins {marker.pins_sha256}" if marker.pins_sha256 else by_hand
            fingerprints[state.spec.name] = f"{marker.version} {source}"
    return fingerprints


def _refused_engine(setting: Setting) -> str | None:
    # Without this check, anyone who can write to a host's cache folder could decide which program runs.
    engines = {getattr(job.variant, "engine", None) for job in setting.jobs.values()}
    of_engine = {state.spec.name: state.spec.engine for state in environment_states()}
    for name, fingerprint in engine_fingerprints().items():
        if of_engine[name] in engines and setting.engines.get(name) != fingerprint:
            remedy = f"'benchmarker engine install {name}' on both makes them equal"
            return f"its environment {name} differs from the one on the sweep's own host; {remedy}"
    return None
