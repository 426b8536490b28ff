"""Installation, registration and removal of the Python environments of external engines."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from benchmarker import __version__
from benchmarker.core.formatting import gib
from benchmarker.engines.external.environments import (
    CMAKE,
    MARKER,
    EngineError,
    EnvironmentSpec,
    EnvironmentState,
    Marker,
    environment_state,
    environments_folder,
)
from benchmarker.engines.external.servers import SERVERS
from benchmarker.hardware.gpu import has_gpu_driver

IMPORT_S = 300.0  # Longest time of an engine's first import.
PYTHON_S = 20.0
PRINT_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
PYTHON_FOLDERS = ("~/.pyenv/versions/{version}*/bin", "~/.local/share/uv/python/cpython-{version}*/bin")
"""Folders in which pyenv and uv install interpreters that may not be on the PATH."""

FIXED_GCC = {11: 5, 12: 4, 13: 3}
"""First minor version without GCC bug 114098, by major version. GCC 10 has no AMX, and GCC 14 does not have the bug.

`_tile_loadconfig` in GCC's header for Intel's AMX declared 8 of the 64 bytes that it reads. llama.cpp's GEMMs with
quantized weights call it, and crash with a segmentation fault.
"""
FAULT = (
    "AMX is left out: with this compiler's header for it programs crash (GCC bug 114098; 12.4, 13.3 and 14 are right)"
)
MISSING_GPU = "this machine has no GPU, without which the engine does not run"
WITHOUT_AMX = "-DCMAKE_C_FLAGS=-mno-amx-int8 -DCMAKE_CXX_FLAGS=-mno-amx-int8"


@dataclass(frozen=True)
class Plan:
    spec: EnvironmentSpec
    folder: Path
    python: Path
    commands: tuple[tuple[str, ...], ...]

    def lines(self) -> list[str]:
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.spec.variables.items())
        return [
            f"{self.spec.name}: {self.spec.summary}; {self.spec.was_run}",
            *((MISSING_GPU,) if self.spec.device == "cuda" and not has_gpu_driver() else ()),
            f"Python {self.python}; about {gib(self.spec.disk_bytes)} of disk in {self.folder}",
            *((FAULT,) if WITHOUT_AMX in self.spec.variables.get(CMAKE, "") else ()),
            *(f"  {variables + ' ' if variables else ''}{shlex.join(command)}" for command in self.commands),
        ]


def plan_environment(spec: EnvironmentSpec, *, python: Path | None = None, index: str | None = None) -> Plan:
    try:
        base = find_python(spec.pythons, python)
    except EngineError as error:
        raise EngineError(f"{spec.name}: {error}") from error
    if CMAKE in spec.variables and "amx_int8" in _cpu_flags() and has_fault(_compiler_version()):
        spec = replace(spec, variables={**spec.variables, CMAKE: f"{spec.variables[CMAKE]} {WITHOUT_AMX}"})
    folder = environments_folder() / spec.name
    pip = (str(folder / "bin" / "python"), "-m", "pip", "install", *spec.pip_options)
    more = ("--extra-index-url", index) if index else ()
    unresolved = [(*pip, "--no-deps", *more, *spec.unresolved)] if spec.unresolved else []
    commands = ((str(base), "-m", "venv", str(folder)), *unresolved, (*pip, *more, "-r", str(spec.pins)))
    return Plan(spec, folder, base, commands)


def make_environment(plan: Plan, note: Callable[[str], None]) -> EnvironmentState:
    """Replace an environment: run the plan's commands, and import the engine once. Raises EngineError."""
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
    """Register a Python interpreter of the user, after importing the engine in it once. Raises EngineError."""
    if library is not None and not any(library.glob("libllama.*")):
        raise EngineError(f"{library}: no libllama in it; give the folder that holds llama.cpp's shared libraries")
    if python_version(python) is None:
        raise EngineError(f"{python}: not a Python interpreter that runs here")
    folder = environments_folder() / spec.name
    with _alone(folder):
        shutil.rmtree(folder, ignore_errors=True)
        # The link is not resolved: the path of a virtual environment's interpreter determines its packages.
        _mark(spec, folder, python.absolute(), pins_sha256=None, library=library)
    return environment_state(spec)


def remove_environment(spec: EnvironmentSpec) -> None:
    """Delete an environment, or the marker that registers an interpreter of the user. Raises EngineError."""
    state = environment_state(spec)
    if not state.folder.exists():
        raise EngineError(f"the environment {spec.name} is not installed; 'benchmarker engine list' shows what is")
    with _alone(state.folder):
        try:
            # The marker is deleted first: after an interruption the environment counts as incomplete.
            (state.folder / MARKER).unlink(missing_ok=True)
            shutil.rmtree(state.folder)
        except OSError as error:
            raise EngineError(f"{state.folder}: not removed: {error.strerror}") from error
    state.folder.with_suffix(".log").unlink(missing_ok=True)


def _run(spec: EnvironmentSpec, command: tuple[str, ...], log: Path) -> None:
    variables = {**os.environ, **spec.variables}
    with log.open("ab") as output:
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=variables, check=False
        )
    if process.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        errors = [line for line in lines if "error" in line.lower()] or lines or ["it printed nothing"]
        raise EngineError(f"{spec.name}: {shlex.join(command)} failed: {errors[-1].strip()}; the whole log is {log}")


def _mark(
    spec: EnvironmentSpec, folder: Path, python: Path, *, pins_sha256: str | None, library: Path | None = None
) -> None:
    marker = Marker(
        name=spec.name,
        python=str(python),
        version=_imported_version(spec, python, library),
        pins_sha256=pins_sha256,
        library=str(library.absolute()) if library else None,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        benchmarker=__version__,
    )
    if spec.engine in SERVERS:
        SERVERS[spec.engine].check(marker)
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{MARKER}.draft"
    draft.write_text(marker.model_dump_json(indent=1) + "\n", encoding="utf-8")
    draft.replace(folder / MARKER)


def _imported_version(spec: EnvironmentSpec, python: Path, library: Path | None) -> str:
    code = f"import {spec.module} as engine; print('\\n' + engine.__version__)"
    command = [str(python), "-I", "-c", code]
    variables = {**os.environ, **({"LLAMA_CPP_LIB_PATH": str(library)} if library else {})}
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_S, env=variables, check=False)
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{spec.name}: importing {spec.module} took more than {IMPORT_S:g} s in {python}") from error
    if process.returncode:
        lines = process.stderr.strip().splitlines() or ["it printed nothing"]
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


def find_python(versions: Sequence[str], chosen: Path | None = None) -> Path:
    """Return an interpreter of the first version in `versions` that is installed. Raises EngineError."""
    if chosen is not None:
        if (version := python_version(chosen)) is None:
            raise EngineError(f"{chosen}: not a Python interpreter that runs here")
        if version not in versions:
            raise EngineError(f"{chosen}: Python {version}, but it must be {' or '.join(versions)}")
        return chosen
    for version in versions:
        for path in _candidates(version):
            if python_version(path) == version:
                return path
    raise EngineError(
        f"needs Python {' or '.join(versions)}, which is not here: install it ('uv python install {versions[0]}', or "
        f"the system's package python{versions[0]}-venv), or give its path with --python"
    )


def python_version(path: Path) -> str | None:
    try:
        process = subprocess.run(
            [str(path), "-I", "-c", PRINT_VERSION], capture_output=True, text=True, timeout=PYTHON_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.split()[0] if process.returncode == 0 and process.stdout else None


def _candidates(version: str) -> Iterator[Path]:
    # The interpreter of a virtual environment is excluded: deleting its environment would break the new one.
    if sys.prefix == sys.base_prefix and f"{sys.version_info[0]}.{sys.version_info[1]}" == version:
        yield Path(sys.executable)
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder and (path := shutil.which(f"python{version}", path=folder)):
            yield Path(path)
    for folder in PYTHON_FOLDERS:
        pattern = os.path.expanduser(f"{folder.format(version=version)}/python{version}")
        yield from (Path(path) for path in sorted(glob.glob(pattern)))


def has_fault(version_text: str) -> bool:
    version = re.search(r"\) (\d+)\.(\d+)\.\d+", version_text.partition("\n")[0])
    if "Free Software Foundation" not in version_text or version is None:
        return False
    major, minor = int(version[1]), int(version[2])
    return minor < FIXED_GCC.get(major, 0)


def _cpu_flags() -> set[str]:
    with contextlib.suppress(OSError):
        if flags := re.search(r"^flags\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return set(flags[1].split())
    return set()


def _compiler_version() -> str:
    try:
        command = [os.environ.get("CXX", "c++"), "--version"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
