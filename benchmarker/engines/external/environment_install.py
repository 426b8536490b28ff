"""Making, registering and removing the environments of external engines."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from benchmarker import __version__
from benchmarker.core.formatting import gib
from benchmarker.engines.external.compiler_fault import FAULT, WITHOUT_AMX, cmake_arguments
from benchmarker.engines.external.environment_specs import CMAKE, EngineError, EnvironmentSpec
from benchmarker.engines.external.environments import (
    MARKER,
    EnvironmentState,
    Marker,
    environment_state,
    environments_folder,
)
from benchmarker.engines.external.python_interpreters import find_python, python_version

PROBE_S = 300.0
"""The first import of vLLM compiles its Python files: half a minute on a slow disk."""


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
            *((FAULT,) if WITHOUT_AMX in self.spec.variables.get(CMAKE, "") else ()),
            *(f"  {variables + ' ' if variables else ''}{shlex.join(command)}" for command in self.commands),
        ]


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
    if spec.engine == "llama-cpp" and (more_arguments := cmake_arguments()):
        spec = replace(spec, variables={**spec.variables, CMAKE: f"{spec.variables[CMAKE]} {more_arguments}"})
    folder = environments_folder() / spec.name
    pip = (str(folder / "bin" / "python"), "-m", "pip", "install", *spec.pip_options)
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
