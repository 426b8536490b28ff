"""The machine in a record: the device, its surroundings, and the device's state during a cell."""

from __future__ import annotations

from typing import Literal

from benchmarker.schema.base import Number, Plain, Whole


class DeviceFacts(Plain):
    """Device that was measured."""

    kind: Literal["cuda", "rocm", "cpu"] | None
    """None if an imported log does not contain it."""
    name: str
    index: Whole | None = None
    uuid: str | None = None
    memory_bytes: Whole | None = None
    capability: str | None = None
    """Compute capability as `9.0`, or the gfx architecture on ROCm."""
    driver: str | None = None
    runtime: str | None = None
    """CUDA or HIP version of the torch build."""
    power_limit_w: Number | None = None
    """Power cap of the board, W. None on CPU or if the driver does not report it."""


class Environment(Plain):
    """Surroundings that can change a measurement. None only in imported logs."""

    device: DeviceFacts
    cpu: str | None
    cores: Whole | None
    """Logical processors available to this process."""
    threads: Whole | None
    """torch's intra-operator threads."""
    memory_bytes: Whole | None
    system: str | None
    python: str | None
    packages: dict[str, str]
    """Versions of torch, transformers and the installed quantization libraries."""
    variables: dict[str, str]
    """Environment variables that change behaviour, by an allow-list that excludes tokens."""
    governor: str | None = None
    """Frequency governor of the processor, as `performance`. None if the system does not report it."""
    commit: str | None = None
    """git commit of benchmarker, with `+changes` if the tree was modified."""


class HostLoad(Plain):
    """Other load on this process's cores while a cell was timed, from the kernel's counters."""

    seconds: Number
    """Time between the two readings, s."""
    cores: Whole
    """Cores available to the process."""
    steal_share: Number
    """Share of core time that a hypervisor gave to other machines."""
    others_share: Number
    """Share of core time of programs other than the measured process and its watcher."""
    involuntary_switches_per_s: Number
    """Involuntary context switches of the measured process per second."""


class Conditions(Plain):
    """State of the board while a cell was timed, sampled by another process through the driver."""

    samples: Whole
    sm_clock_mhz: Whole | None = None
    """Median clock of the compute units, MHz."""
    sm_clock_full_mhz: Whole | None = None
    """Default clock of the board without throttling, MHz."""
    temperature_c: Number | None = None
    """Highest temperature, degrees Celsius."""
    power_w: Number | None = None
    """Mean of the board's power readings, W. The board averages each over up to a second."""
    throttled_by: tuple[str, ...] | None = ()
    """Reasons for reduced clocks, such as `power_cap`. None if the driver does not report them."""
    processes: Whole | None = None
    """Maximum number of processes that computed on the board at once. None if the driver does not report it."""
