"""Environments of external engines: one folder each under the cache folder, with a file in it that is written last.

A folder without that file is half-made, and is never used. The file also registers an interpreter of the user's own:
then nothing is installed, and nothing but the file is ours. Whoever can write to the cache folder decides what runs;
a config or a record cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from benchmarker.checkpoints.cache import cache_folder
from benchmarker.engines.external.environment_specs import ENVIRONMENTS, EngineError, EnvironmentSpec
from benchmarker.schema.base import Plain

MARKER = "environment.json"


class Marker(Plain):
    """What an environment says of itself."""

    name: str
    python: str
    """Path of its interpreter."""
    version: str
    """Version of the engine, as it was imported once the environment was made."""
    pins_sha256: str | None
    """`EnvironmentSpec.pins_sha256` when it was made; None for an interpreter of the user's own."""
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
        """The interpreter of the environment, and the library that it loads.

        Raises:
            EngineError: The environment cannot be used.
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
        """Bytes of all files in the environment's folder."""
        paths = [path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink()]
        return sum(path.stat().st_size for path in paths)


def environments_folder() -> Path:
    """The folder of all environments; it may not exist yet."""
    return cache_folder() / "environments"


def environment_state(spec: EnvironmentSpec) -> EnvironmentState:
    """The state of an environment on the disk."""
    folder = environments_folder() / spec.name
    try:
        marker = Marker.model_validate_json((folder / MARKER).read_bytes())
    except (OSError, ValidationError):
        marker = None
    return EnvironmentState(spec, folder, marker)


def environment_states() -> list[EnvironmentState]:
    """The state of every environment that can be made."""
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
