"""What goes wrong with an engine in a process of its own, each with the kind that a row of it has."""

from __future__ import annotations

from benchmarker.core.errors import BenchmarkerError


class DriverError(BenchmarkerError):
    """The driver of an engine could not be started, died, hung, or answered what makes no sense."""


class DriverCrashError(DriverError):
    """The driver's process ended in the middle of a request. A sweep tries once more in a fresh process."""

    kind = "crash"


class DriverTimeoutError(DriverError):
    """The driver gave no answer in its time, and was ended. A sweep tries once more in a fresh process."""

    kind = "timeout"


class HostMemoryError(DriverError):
    """An engine ran out of the machine's memory."""

    kind = "oom_host"


class GpuMemoryError(DriverError):
    """An engine ran out of the GPU's memory."""

    kind = "oom_gpu"
