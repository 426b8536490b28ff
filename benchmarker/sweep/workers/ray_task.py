"""Functions that run at a Ray worker: they measure work in a temporary folder and return the files."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import benchmarker
from benchmarker.core.errors import BenchmarkerError
from benchmarker.engines.external.environments import EnvironmentState, environment_states
from benchmarker.execution.jobs import is_job_file, write_job
from benchmarker.schema.environment import Environment
from benchmarker.schema.job import Job
from benchmarker.sweep.judge_quality import check_inputs
from benchmarker.sweep.prepare_host import prepare_host
from benchmarker.sweep.sweep_state import Progress, Sweep
from benchmarker.sweep.workers.base import Tools, Work, Worker, do, equip, why_unlike

SET_BY_RAY = re.compile(r"(OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS")
"""Variables that Ray sets in its workers, and that a measurement depends on."""


class LineQueue:
    """Lines on their way from the workers to the sweep: a Ray actor."""

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
    """Values that the user's shell has for the variables that Ray sets."""
    engines: Mapping[str, str]
    """Fingerprints of the environments of external engines that may be used, by name."""
    lines: Any


@dataclass(frozen=True)
class Task:
    worker: Worker
    work: Work
    sweep: Sweep
    shares_host: bool
    environments: Mapping[str, Environment]
    """Environments that earlier tasks determined, by card."""
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class Result:
    card: str = ""
    environment: Environment | None = None
    commit: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    progress: Progress | None = None
    unfit: str | None = None
    error: BaseException | None = None


def prepare(setting: Setting, worker: Worker) -> Result:
    card, jobs = _enter(setting, worker), list(setting.jobs.values())
    try:
        check_inputs(jobs)
        commit = setting.tools.look_for(jobs[0])
        command, print_line = setting.tools.prepare_host, _line_printer(setting, worker)
        environment = prepare_host(jobs[0].device, jobs, command=command, print_line=print_line)
    except BenchmarkerError as error:
        return Result(unfit=str(error))
    return Result(card, environment, commit, unfit=_refused_engine(setting))


def measure(setting: Setting, task: Task) -> Result:
    card, print_line, jobs = _enter(setting, task.worker), _line_printer(setting, task.worker), task.sweep.jobs
    device, command = next(iter(jobs.values())).device, setting.tools.prepare_host
    try:
        environment = task.environments.get(card) or prepare_host(device, command=command, print_line=print_line)
    except BenchmarkerError as error:
        return Result(unfit=str(error))
    if unfit := _refused_engine(setting) or why_unlike(jobs.values(), environment):
        return Result(unfit=unfit)
    with tempfile.TemporaryDirectory(prefix="benchmarker-") as home:
        sweep = replace(task.sweep, folder=Path(home))
        for job in jobs.values():
            write_job(job, sweep.folder)
        for name, content in task.files.items():
            (sweep.folder / name).write_bytes(content)
        worker = replace(task.worker, slot=int(card.rpartition("/")[2]) % task.worker.slots)
        equipment = equip(sweep, worker, environment, setting.tools, print_line)
        equipment.shares_host = task.shares_host
        with equipment.in_use():
            ended = do(sweep, equipment, worker, task.work)
        if isinstance(ended.error, BenchmarkerError):
            return Result(card, environment, error=ended.error)
        if ended.error:
            raise ended.error
        files = {path.name: path.read_bytes() for path in sorted(sweep.folder.iterdir()) if _is_result(path)}
        return Result(card, environment, files=files, progress=sweep.progress)


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


def _line_printer(setting: Setting, worker: Worker) -> Callable[[str], None]:
    return lambda line: setting.lines.put.remote(worker.name, line)


def _is_result(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and not is_job_file(path)


def engine_fingerprints() -> dict[str, str]:
    """Return fingerprints of this host's working environments of external engines, by name."""
    return {state.spec.name: _fingerprint(state) for state in environment_states() if state.problem is None}


def _refused_engine(setting: Setting) -> str | None:
    """Return an error if a job would use an environment that the sweep's own host does not have.

    Anyone who can write to a host's cache folder could otherwise decide which program runs.
    """
    engines = {getattr(job.variant, "engine", None) for job in setting.jobs.values()}
    of_engine = {state.spec.name: state.spec.engine for state in environment_states()}
    for name, fingerprint in engine_fingerprints().items():
        if of_engine[name] in engines and setting.engines.get(name) != fingerprint:
            return (
                f"its environment {name} differs from the one on the sweep's own host; "
                f"'benchmarker engine install {name}' on both makes them equal"
            )
    return None


def _fingerprint(state: EnvironmentState) -> str:
    marker = state.interpreter
    if marker.pins_sha256:
        return f"{marker.version} from pins {marker.pins_sha256}"
    return f"{marker.version} in {marker.python}, libraries in {marker.library}"
