"""GPU telemetry from the driver: NVML on NVIDIA, amdsmi on AMD.

torch counts only the memory of its own allocator. The driver counts the whole GPU: the context, the libraries'
workspaces and other programs. Neither library is required, and neither creates a context on the GPU. A value that the
driver does not provide is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class GpuState:
    """Readings of one GPU at one moment; None if the driver does not provide a value."""

    time_s: float
    """Unix time of the readings."""
    clock_mhz: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttled_by: frozenset[str] | None = frozenset()
    """Reasons that lower the clocks, such as `power_cap`."""
    held_ns: Mapping[str, int] = field(default_factory=dict)
    """Nanoseconds with lowered clocks since the driver was loaded, by reason."""
    processes: int | None = None


class Gpu(Protocol):
    """One GPU, or one slice of a GPU (MIG), through its driver; None if the driver does not provide a value."""

    @property
    def vendor(self) -> str: ...

    @property
    def name(self) -> str | None: ...

    @property
    def uuid(self) -> str | None:
        """Identifier that stays with the hardware."""

    @property
    def driver(self) -> str | None: ...

    @property
    def newest_cuda(self) -> str | None:
        """Newest CUDA version that the driver supports, such as `13.0`; None on AMD."""

    @property
    def is_sliced(self) -> bool:
        """True if the GPU is divided into instances (MIG)."""

    def used_bytes(self) -> int | None:
        """Return the memory in use by all programs together."""

    def total_bytes(self) -> int | None: ...

    def energy_j(self) -> float | None:
        """Return the joules that the board has used since its driver was loaded; take differences."""

    def power_w(self) -> float | None:
        """Return the watts of the whole board, which averages them over up to a second."""

    def power_limit_w(self) -> float | None: ...

    def power_default_w(self) -> float | None: ...

    def temperature_c(self) -> float | None:
        """Return degrees Celsius: of the GPU on NVIDIA, of its hottest spot on AMD."""

    def clock_mhz(self) -> int | None:
        """Return the current clock of the compute units."""

    def full_clock_mhz(self) -> int | None:
        """Return the default clock of the compute units; None on AMD."""

    def memory_bytes_per_s(self) -> float | None:
        """Return the bandwidth from the memory's highest clock and the width of its bus."""

    def process_ids(self) -> tuple[int, ...] | None:
        """Return the processes that compute on the GPU. In a container the ids are the host's and may be incomplete."""

    def state(self) -> GpuState: ...
