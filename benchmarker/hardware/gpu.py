"""GPU telemetry: what a driver says of one GPU, on NVIDIA through NVML and on AMD through amdsmi.

torch counts only what its own allocator took. The driver sees the whole GPU: the context, the libraries' workspaces,
and other programs. Neither library is required, and neither creates a context on the GPU. A missing answer is None,
never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class GpuState:
    """The readings of one GPU at one moment. None for what its driver does not say."""

    time_s: float
    """Unix time of the readings, in seconds."""
    clock_mhz: int | None = None
    """Clock of the compute units, in MHz."""
    temperature_c: float | None = None
    """Temperature, in degrees Celsius."""
    power_w: float | None = None
    """Power of the whole board, in watts."""
    throttled_by: frozenset[str] | None = frozenset()
    """Reasons that hold the clocks down, such as `power_cap`. None where the driver does not say."""
    held_ns: Mapping[str, int] = field(default_factory=dict)
    """Nanoseconds for which the clocks were held down since the driver was loaded, by reason."""
    processes: int | None = None
    """Number of processes that compute on the GPU."""


class Gpu(Protocol):
    """One GPU, or one slice of a GPU (MIG), through its driver. None where the driver does not say."""

    @property
    def vendor(self) -> str:
        """`NVIDIA` or `AMD`."""

    @property
    def name(self) -> str | None:
        """Product name, such as `NVIDIA H100 80GB HBM3`."""

    @property
    def uuid(self) -> str | None:
        """Identifier that stays with the hardware."""

    @property
    def driver(self) -> str | None:
        """Version of the kernel driver."""

    @property
    def newest_cuda(self) -> str | None:
        """Newest CUDA version that the driver runs, such as `13.0`; None on AMD."""

    @property
    def is_sliced(self) -> bool:
        """Whether the GPU is divided into instances (MIG)."""

    def used_bytes(self) -> int | None:
        """Memory in use by all programs together, in bytes."""

    def total_bytes(self) -> int | None:
        """Size of the memory, in bytes."""

    def energy_j(self) -> float | None:
        """Energy in joules that the board has used since its driver was loaded: a counter, to be differenced."""

    def power_w(self) -> float | None:
        """Power of the whole board in watts, which it averages over up to a second."""

    def power_limit_w(self) -> float | None:
        """Power cap that is set now, in watts."""

    def power_default_w(self) -> float | None:
        """Power cap that the board comes with, in watts."""

    def temperature_c(self) -> float | None:
        """Temperature in degrees Celsius: of the GPU on NVIDIA, of its hottest spot on AMD."""

    def clock_mhz(self) -> int | None:
        """Clock of the compute units now, in MHz."""

    def full_clock_mhz(self) -> int | None:
        """Clock of the compute units in MHz that the board runs at by default; None on AMD."""

    def memory_bytes_per_s(self) -> float | None:
        """Bandwidth in bytes per second that the memory's fastest clock and the width of its bus allow."""

    def process_ids(self) -> tuple[int, ...] | None:
        """Processes that compute on the GPU. In a container their ids are the host's, and perhaps not all are seen."""

    def state(self) -> GpuState:
        """Clock, temperature, power, throttling and processes at this moment."""
