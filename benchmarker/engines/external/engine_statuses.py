"""For `doctor`: whether each external engine runs here, and the one thing to do."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarker.engines.external.environment_specs import ENVIRONMENTS, NOT_RUN
from benchmarker.engines.external.environments import environment_state


@dataclass(frozen=True)
class EngineStatus:
    """One engine on this machine."""

    engine: str
    environment: str
    """The one for this device."""
    version: str | None
    """None where it does not run here."""
    remedy: str | None
    """What to do so that it runs; None where it does."""
    was_run: bool
    """Whether benchmarker's authors have run this environment."""

    @property
    def line(self) -> str:
        """The status in a line: the version that runs here, or what to do."""
        state = f"{self.version} runs here" if self.remedy is None else self.remedy
        return f"{self.engine}: {state}{'' if self.was_run else f' ({NOT_RUN})'}"


def engine_statuses(device: str) -> list[EngineStatus]:
    """The status of each external engine on a device of that kind.

    Args:
        device: `cuda`, `rocm` or `cpu`.
    """
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
