"""What a record says of the machine: the device, everything around it, and how the device was during a cell."""

from __future__ import annotations

from typing import Literal

from benchmarker.schema.base import Number, Plain, Whole


class DeviceFacts(Plain):
    """The device that was measured."""

    kind: Literal["cuda", "rocm", "cpu"] | None
    """None where an imported log does not say."""
    name: str
    index: Whole | None = None
    uuid: str | None = None
    memory_bytes: Whole | None = None
    capability: str | None = None
    """Compute capability as `9.0`, or the gfx architecture on ROCm."""
    driver: str | None = None
    runtime: str | None = None
    """CUDA or HIP version that torch was built for."""
    power_limit_w: Number | None = None
    """Power cap of the board. None on CPU, where its driver does not say, and in records from before it was kept."""


class Environment(Plain):
    """Everything around the measurement that can change it. None only where a log that was imported does not say."""

    device: DeviceFacts
    cpu: str | None
    cores: Whole | None
    """Logical processors this process may use."""
    threads: Whole | None
    """torch's intra-operator threads."""
    memory_bytes: Whole | None
    system: str | None
    python: str | None
    packages: dict[str, str]
    """Versions of torch, transformers and the quantization libraries, where installed."""
    variables: dict[str, str]
    """Environment variables that change behaviour, by an allow-list; never a token."""
    governor: str | None = None
    """What chooses the processor's clock, as `performance`. None where the system does not say, and in records from
    before it was kept."""
    commit: str | None = None
    """git commit of benchmarker, with `+changes` where the tree was not clean."""


class HostLoad(Plain):
    """What else ran on this process's cores while one cell's repeats were timed, by the kernel's counters."""

    seconds: Number
    """Between the two readings, which are next to the cell's beginning and end."""
    cores: Whole
    """That the process may run on."""
    steal_share: Number
    """Of these cores' time, what a hypervisor gave to others."""
    others_share: Number
    """Of these cores' time, what programs took that are neither the measured one nor the one that watches it."""
    involuntary_switches_per_s: Number
    """How often the measured process was put aside for another."""


class Conditions(Plain):
    """The board while one cell's repeats were timed, sampled by another process through the driver."""

    samples: Whole
    sm_clock_mhz: Whole | None = None
    """Median clock of the compute units."""
    sm_clock_full_mhz: Whole | None = None
    """The clock that the board runs at by default when nothing holds it back."""
    temperature_c: Number | None = None
    """The highest."""
    power_w: Number | None = None
    """Mean of the board's own readings, which it averages over up to a second."""
    throttled_by: tuple[str, ...] | None = ()
    """What held the clocks down at any time, such as `power_cap` or `hardware_thermal`. None where the driver does not
    say."""
    processes: Whole | None = None
    """Most that computed on the board at once: 1 is the measured one alone. None where the driver does not say."""
