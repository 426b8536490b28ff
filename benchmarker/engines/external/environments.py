"""Environments of external engines: one folder each under the cache folder, with a file in it that is written last.

A folder without that file is half-made, and is never used. The file also registers an interpreter of the user's own:
then nothing is installed, and nothing but the file is ours. Whoever can write to the cache folder decides what runs;
a config or a record cannot.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import ValidationError

from benchmarker import __version__
from benchmarker.checkpoints.cache import cache_folder
from benchmarker.core.units import gib
from benchmarker.engines.external.environment_specs import ENVIRONMENTS, EngineError, EnvironmentSpec
from benchmarker.engines.external.python_interpreters import find_python, python_version
from benchmarker.schema.base import Plain

MARKER = "environment.json"
PROBE_S = 300.0
"""The first import of vLLM compiles its Python files: half a minute on a slow disk."""


class Marker(Plain):
    """What an environment says of itself."""

    name: str
    python: str
    """Path of its interpreter."""
    version: str
    """Of the engine, as it was imported in the end."""
    pins_sha256: str | None
    """None for an interpreter of the user's own."""
    library: str | None = None
    """Folder of a build of llama.cpp by the user, instead of the one that llama-cpp-python brought."""
    created: str
    """ISO 8601, UTC."""
    benchmarker: str


@dataclass(frozen=True)
class EnvironmentState:
    """An environment as it is on this machine."""

    spec: EnvironmentSpec
    folder: Path
    marker: Marker | None
    """None where it is not whole."""

    @property
    def problem(self) -> str | None:
        """Why it cannot be used and what to do; None where it can."""
        install = f"'benchmarker engine install {self.spec.name}'"
        if self.marker is None:
            state = "is half-made" if self.folder.exists() else "is not installed"
            return f"the environment {self.spec.name} {state}: {install} makes it"
        if not Path(self.marker.python).is_file():
            return (
                f"the environment {self.spec.name} has lost its Python {self.marker.python}: {install} makes it again"
            )
        if self.marker.pins_sha256 not in (None, self.spec.pins_sha256):
            return f"the environment {self.spec.name} is older than this benchmarker's pins: {install} makes it again"
        return None

    @property
    def interpreter(self) -> Marker:
        """Which interpreter, and with which library.

        Raises:
            EngineError: It cannot be used.
        """
        if self.marker is None or self.problem:
            raise EngineError(f"{self.spec.engine}: {self.problem}")
        return self.marker

    @property
    def words(self) -> str:
        """The state in a few words."""
        if self.marker is None:
            return "half-made" if self.folder.exists() else "not installed"
        if self.problem:
            return "to be made again"
        return f"ready: {self.marker.version}{', Python of your own' if self.is_registered else ''}"

    @property
    def is_registered(self) -> bool:
        """Whether its interpreter is the user's own."""
        return self.marker is not None and self.marker.pins_sha256 is None

    @property
    def size_bytes(self) -> int:
        """Of all files in its folder."""
        paths = [path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink()]
        return sum(path.stat().st_size for path in paths)


@dataclass(frozen=True)
class Plan:
    """How an environment will be made."""

    spec: EnvironmentSpec
    folder: Path
    python: Path
    """The interpreter that it is made from."""
    commands: tuple[tuple[str, ...], ...]

    def lines(self) -> list[str]:
        """The plan for people: commands as a shell takes them."""
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.spec.variables.items())
        return [
            f"{self.spec.name}: {self.spec.summary}; {self.spec.was_run}",
            f"Python {self.python}; about {gib(self.spec.disk_bytes)} of disk in {self.folder}",
            *(f"  {variables + ' ' if variables else ''}{shlex.join(command)}" for command in self.commands),
        ]


def environments_folder() -> Path:
    """Where all of them are; it may not exist yet."""
    return cache_folder() / "environments"


def environment_state(spec: EnvironmentSpec) -> EnvironmentState:
    """What is there of one environment."""
    folder = environments_folder() / spec.name
    try:
        marker = Marker.model_validate_json((folder / MARKER).read_bytes())
    except (OSError, ValidationError):
        marker = None
    return EnvironmentState(spec, folder, marker)


def environment_states() -> list[EnvironmentState]:
    """Of every environment that there could be."""
    return [environment_state(spec) for spec in ENVIRONMENTS.values()]


def ready_environment(engine: str, device: str) -> EnvironmentState:
    """The environment in which an engine runs on a device of that kind.

    Args:
        device: `cuda` or `cpu`.

    Raises:
        EngineError: None is ready; the message says what to do.
    """
    states = [state for state in environment_states() if state.spec.engine == engine and state.spec.device == device]
    if not states:
        raise EngineError(f"{engine}: no environment of it computes on {device}")
    for state in states:
        if state.problem is None:
            return state
    raise EngineError(f"{engine}: {states[0].problem}")


def plan_environment(spec: EnvironmentSpec, *, python: Path | None = None, index: str | None = None) -> Plan:
    """The commands that make an environment.

    Args:
        python: The interpreter to make it from, instead of one that is found.
        index: Of packages, beside pip's own.

    Raises:
        EngineError: No interpreter of a version that it needs.
    """
    try:
        base = find_python(spec.pythons, python)
    except EngineError as error:
        raise EngineError(f"{spec.name}: {error}") from error
    folder = environments_folder() / spec.name
    pip = (str(folder / "bin" / "python"), "-m", "pip", "install")
    more = ("--extra-index-url", index) if index else ()
    commands = [(str(base), "-m", "venv", str(folder))]
    if spec.unresolved:
        commands.append((*pip, "--no-deps", *more, *spec.unresolved))
    commands.append((*pip, *more, "-r", str(spec.pins)))
    return Plan(spec, folder, base, tuple(commands))


def make_environment(plan: Plan, note: Callable[[str], None]) -> EnvironmentState:
    """Run a plan's commands, import the engine once, and mark the environment as whole.

    What was there under its name is removed first. What the commands print goes to a log beside the folder.

    Raises:
        EngineError: No room, a command that failed, or another process that makes it at the same time.
    """
    log = plan.folder.with_suffix(".log")
    with _alone(plan.folder):
        free_bytes = shutil.disk_usage(plan.folder.parent).free
        if free_bytes < plan.spec.disk_bytes:
            raise EngineError(
                f"{plan.spec.name}: needs {gib(plan.spec.disk_bytes)}, {plan.folder.parent} has {gib(free_bytes)} "
                "free; make room, or set BENCHMARKER_CACHE to a folder on another disk"
            )
        shutil.rmtree(plan.folder, ignore_errors=True)
        log.unlink(missing_ok=True)
        for command in plan.commands:
            note(shlex.join(command))
            _run(plan.spec, command, log)
        _mark(plan.spec, plan.folder, plan.folder / "bin" / "python", pins_sha256=plan.spec.pins_sha256)
    return environment_state(plan.spec)


def register_environment(spec: EnvironmentSpec, *, python: Path, library: Path | None = None) -> EnvironmentState:
    """Use an interpreter of the user's own for an engine, after importing the engine in it once.

    Raises:
        EngineError: It is no interpreter, or has not the engine.
    """
    if library is not None and not any(library.glob("libllama.*")):
        raise EngineError(f"{library}: no libllama in it; give the folder that holds llama.cpp's shared libraries")
    if python_version(python) is None:
        raise EngineError(f"{python}: not a Python interpreter that runs here")
    folder = environments_folder() / spec.name
    with _alone(folder):
        shutil.rmtree(folder, ignore_errors=True)
        # Not resolved: the interpreter of a virtual environment is a link, and knows its packages by the link's place.
        _mark(spec, folder, python.absolute(), pins_sha256=None, library=library)
    return environment_state(spec)


def remove_environment(spec: EnvironmentSpec) -> EnvironmentState:
    """Delete an environment, half-made ones too; an interpreter of the user's own is only forgotten.

    Raises:
        EngineError: There is none, or it cannot be deleted.
    """
    state = environment_state(spec)
    if not state.folder.exists():
        raise EngineError(f"the environment {spec.name} is not installed; 'benchmarker engine list' shows what is")
    with _alone(state.folder):
        try:
            # The marker first: what is left after an interruption is half-made.
            (state.folder / MARKER).unlink(missing_ok=True)
            shutil.rmtree(state.folder)
        except OSError as error:
            raise EngineError(f"{state.folder}: not removed: {error.strerror}") from error
    state.folder.with_suffix(".log").unlink(missing_ok=True)
    return state


def _run(spec: EnvironmentSpec, command: tuple[str, ...], log: Path) -> None:
    with log.open("ab") as output:
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **spec.variables},
            check=False,
        )
    if process.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        errors = [line for line in lines if "error" in line.lower()] or lines or ["it printed nothing"]
        raise EngineError(f"{spec.name}: {shlex.join(command)} failed: {errors[-1].strip()}; the whole log is {log}")


def _mark(
    spec: EnvironmentSpec, folder: Path, python: Path, *, pins_sha256: str | None, library: Path | None = None
) -> None:
    """Import the engine, and write the marker under another name first."""
    marker = Marker(
        name=spec.name,
        python=str(python),
        version=_imported_version(spec, python, library),
        pins_sha256=pins_sha256,
        library=str(library.absolute()) if library else None,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        benchmarker=__version__,
    )
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{MARKER}.draft"
    draft.write_text(marker.model_dump_json(indent=1) + "\n", encoding="utf-8")
    draft.replace(folder / MARKER)


def _imported_version(spec: EnvironmentSpec, python: Path, library: Path | None) -> str:
    code = f"import {spec.module} as engine; print('\\n' + engine.__version__)"
    try:
        process = subprocess.run(
            [str(python), "-I", "-c", code],
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            env={**os.environ, **({"LLAMA_CPP_LIB_PATH": str(library)} if library else {})},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{spec.name}: importing {spec.module} took more than {PROBE_S:g} s in {python}") from error
    if process.returncode:
        lines = process.stderr.strip().splitlines() or ["it said nothing"]
        raise EngineError(f"{spec.name}: {spec.module} cannot be imported in {python}: {lines[-1]}")
    return process.stdout.split()[-1]


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock", timeout=0):
            yield
    except Timeout as error:
        raise EngineError(f"another process makes or removes {folder.name}; try again when it has ended") from error
    except OSError as error:
        raise EngineError(f"{folder}: cannot be written: {error.strerror or error}; set BENCHMARKER_CACHE") from error
