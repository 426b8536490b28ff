"""Functions that run at a Ray worker: they measure work in a temporary folder and return the files."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import benchmarker
from benchmarker.core.errors import BenchmarkerError
from benchmarker.engines.external.environments import EnvironmentState, environment_states
from benchmarker.execution.job_file import is_job_file, write_job
from benchmarker.schema.job import Job
from benchmarker.schema.record import Environment
from benchmarker.sweep.judge_quality import Judgement, check_inputs
from benchmarker.sweep.live_table import LiveTable
from benchmarker.sweep.prepare_host import prepare_host
from benchmarker.sweep.starter import Starter, shared_modules
from benchmarker.sweep.sweep_plan import Forecast, Schedule
from benchmarker.sweep.sweep_state import Equipment, Progress, Sweep
from benchmarker.sweep.workers.base import Session, Tools, Work, Worker, do, own_cores, why_unlike

SET_BY_RAY = re.compile(r"(OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS")
"""Variables that Ray sets in its workers, and that a measurement depends on."""


class LineQueue:
    """Lines on their way from the workers to the sweep: a Ray actor."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, str]] = []

    def put(self, worker: str, line: str) -> None:
        self._lines.append((worker, line))

    def take(self) -> list[tuple[str, str]]:
        """Return the lines since the last call, each with the name of its worker."""
        lines, self._lines = self._lines, []
        return lines


@dataclass(frozen=True)
class Setting:
    """Everything that all tasks of a sweep need at their worker."""

    tools: Tools
    jobs: Mapping[str, Job]
    variables: Mapping[str, str]
    """Values that the user's shell has for the variables that Ray sets."""
    engines: Mapping[str, str]
    """Fingerprints of the environments of external engines that may be used, by name."""
    lines: Any


@dataclass(frozen=True)
class RemoteWork:
    worker: Worker
    work: Work
    sweep: Sweep
    progress: Progress
    rounds: int
    shares_host: bool
    environments: Mapping[str, Environment] = field(default_factory=dict)
    """Environments that earlier tasks determined, by card."""
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class RemoteResult:
    card: str = ""
    environment: Environment | None = None
    commit: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    progress: Progress | None = None
    unfit: str | None = None
    error: BenchmarkerError | None = None


def prepare_worker_host(setting: Setting, worker: Worker) -> RemoteResult:
    """Check the inputs of the jobs, prepare their checkpoints, and return the environment."""
    card = _enter(setting, worker)
    first = next(iter(setting.jobs.values()))
    try:
        check_inputs(setting.jobs.values())
        commit = setting.tools.look_for(first)
        with tempfile.TemporaryDirectory(prefix="benchmarker-") as folder:
            files = [write_job(job.model_copy(update={"origin": None}), Path(folder)) for job in setting.jobs.values()]
            environment = prepare_host(
                first.device, files, command=setting.tools.prepare_host, print_line=_line_printer(setting, worker)
            )
    except BenchmarkerError as error:
        return RemoteResult(unfit=str(error))
    return RemoteResult(card, environment, commit, unfit=_refused_engine(setting))


def measure(setting: Setting, task: RemoteWork) -> RemoteResult:
    """Do the work on the card that Ray assigned to this process."""
    worker, jobs = task.worker, task.sweep.jobs
    card = _enter(setting, worker)
    try:
        environment = task.environments.get(card) or prepare_host(
            next(iter(jobs.values())).device,
            command=setting.tools.prepare_host,
            print_line=_line_printer(setting, worker),
        )
    except BenchmarkerError as error:
        return RemoteResult(unfit=str(error))
    if unfit := _refused_engine(setting) or why_unlike(jobs.values(), environment):
        return RemoteResult(unfit=unfit)
    with tempfile.TemporaryDirectory(prefix="benchmarker-") as home:
        folder = Path(home)
        for job in jobs.values():
            write_job(job, folder)
        for name, content in task.files.items():
            (folder / name).write_bytes(content)
        sweep, progress = replace(task.sweep, folder=folder), task.progress
        progress.live_table = LiveTable(sweep.workload)
        try:
            _do(setting, task, sweep, environment, slot=int(card.rpartition("/")[2]) % worker.slots)
        except BenchmarkerError as error:
            return RemoteResult(card, environment, error=error)
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if _is_result(path)}
        return RemoteResult(card, environment, files=files, progress=progress)


def _do(setting: Setting, task: RemoteWork, sweep: Sweep, environment: Environment, *, slot: int) -> None:
    worker, work, print_line = task.worker, task.work, _line_printer(setting, task.worker)
    monitor = setting.tools.find_monitor(environment)
    all_cores = os.sched_getaffinity(0)
    share = own_cores(slot, worker.slots) if worker.slots > 1 else tuple(all_cores)
    modules = shared_modules(sweep.workload, shared_imports=sweep.settings.shared_imports)
    equipment = Equipment(
        name=worker.name,
        environment=environment,
        monitor=monitor,
        watch_host=setting.tools.watch_host if share else None,
        starter=Starter(modules, print_line=print_line),
        print_line=print_line,
        shares_host=task.shares_host,
    )
    if isinstance(work, Judgement):
        work = replace(work, records=tuple(sweep.folder / path.name for path in work.records))
        tasks = []
    else:
        tasks = list(work.tasks)
    forecast = Forecast(sweep.jobs, shared_imports=sweep.settings.shared_imports)
    session = Session(sweep, task.progress, Schedule(tasks, forecast, rounds=task.rounds))
    os.sched_setaffinity(0, share or all_cores)
    try:
        with closing(equipment.starter), monitor.running() if monitor else nullcontext():
            ended = do(session, equipment, worker, work)
    finally:
        # Ray uses this process again for other tasks.
        os.sched_setaffinity(0, all_cores)
    if ended.error:
        raise ended.error


def _enter(setting: Setting, worker: Worker) -> str:
    """Give this process the user's variables, and return the identity of its card, such as `a1b2c3/0`."""
    import ray

    for name in [name for name in os.environ if SET_BY_RAY.fullmatch(name)]:
        del os.environ[name]
    source = str(Path(benchmarker.__file__).parents[1])
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.update(setting.variables)
    os.environ["PYTHONPATH"] = os.pathsep.join([source, *(part for part in path if part and part != source)])
    context = ray.get_runtime_context()
    cards = context.get_accelerator_ids().get("GPU", [])
    number = int(cards[0]) if cards and str(cards[0]).isdigit() else worker.slot
    return f"{context.get_node_id()}/{number}"


def _line_printer(setting: Setting, worker: Worker) -> Any:
    return lambda line: setting.lines.put.remote(worker.name, line)


def _is_result(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and not is_job_file(path)


def own_engines() -> dict[str, str]:
    """Return fingerprints of this host's working environments of external engines, by name."""
    return {state.spec.name: _fingerprint(state) for state in environment_states() if state.problem is None}


def _refused_engine(setting: Setting) -> str | None:
    """Return an error if a job would use an environment that the sweep's own host does not have.

    Anyone who can write to a host's cache folder could otherwise decide which program runs.
    """
    engines = {getattr(job.variant, "engine", None) for job in setting.jobs.values()}
    for state in environment_states():
        if state.spec.engine not in engines or state.problem is not None:
            continue
        if setting.engines.get(state.spec.name) != _fingerprint(state):
            return (
                f"its environment {state.spec.name} differs from the one on the sweep's own host; "
                f"'benchmarker engine install {state.spec.name}' on both makes them equal"
            )
    return None


def _fingerprint(state: EnvironmentState) -> str:
    marker = state.interpreter
    if marker.pins_sha256:
        return f"{marker.version} from pins {marker.pins_sha256}"
    return f"{marker.version} in {marker.python}, libraries in {marker.library}"
