"""Device under test: synchronization and memory peaks.

torch.cuda is HIP on ROCm, so one class serves NVIDIA and AMD. A CPU needs no synchronization; its memory is the growth
of the process's resident set since before the model was loaded, so that Python and its libraries do not count. Linux
keeps the peak of the resident set (VmHWM), which is reset by writing 5 to clear_refs.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarker.core.errors import BenchmarkerError, DeviceError, ErrorKind


@dataclass(frozen=True)
class PeakMemory:
    """High-water marks since the last reset, in bytes; None if the device has no such mark."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    resident_bytes: int | None = None
    growth_bytes: int | None = None
    """Growth of the resident memory since `begin_growth`; None if it was not called, and on a GPU."""


class CudaDevice:
    """One GPU, or several that one process uses; inputs and outputs are then on the first."""

    def __init__(self, *indices: int) -> None:
        import torch

        self._cuda = torch.cuda
        self.indices = indices
        self.torch_name = f"cuda:{indices[0]}"
        self.kind: Literal["cuda", "rocm"] = "rocm" if torch.version.hip else "cuda"

    def synchronize(self) -> None:
        for index in self.indices:
            self._cuda.synchronize(index)

    def reset_peak(self) -> None:
        for index in self.indices:
            self._cuda.reset_peak_memory_stats(index)

    def peak_memory(self) -> PeakMemory:
        reserved_bytes = max(map(self._cuda.max_memory_reserved, self.indices))
        return PeakMemory(allocated_bytes=max(self.peaks()), reserved_bytes=reserved_bytes)

    def peaks(self) -> tuple[int, ...]:
        return tuple(self._cuda.max_memory_allocated(index) for index in self.indices)

    def begin_growth(self) -> None:
        """Do nothing: torch's allocator counts only tensors on a GPU."""

    def release(self) -> None:
        self._cuda.empty_cache()

    def is_out_of_memory(self, error: BaseException) -> bool:
        # Kernels outside torch raise a plain RuntimeError.
        return isinstance(error, self._cuda.OutOfMemoryError) or (
            isinstance(error, RuntimeError) and "out of memory" in str(error).lower()
        )


CLEAR_REFS = Path("/proc/self/clear_refs")


class CpuDevice:
    torch_name = "cpu"
    indices: tuple[int, ...] = ()
    kind: Literal["cpu"] = "cpu"

    def __init__(self) -> None:
        self._is_reset = True
        self._before_bytes: int | None = None

    def synchronize(self) -> None: ...

    def reset_peak(self) -> None:
        # clear_refs is missing in some sandboxes; VmHWM then includes earlier peaks and is not used.
        self._is_reset = False
        with contextlib.suppress(OSError):
            CLEAR_REFS.write_text("5")
            self._is_reset = True

    def peak_memory(self) -> PeakMemory:
        resident_bytes, before_bytes = _status_bytes("VmHWM") if self._is_reset else None, self._before_bytes
        if resident_bytes is None or before_bytes is None:
            return PeakMemory(resident_bytes=resident_bytes)
        return PeakMemory(resident_bytes=resident_bytes, growth_bytes=max(0, resident_bytes - before_bytes))

    def begin_growth(self) -> None:
        """Store the resident memory from which growth is counted; to be called before the model is loaded."""
        gc.collect()
        # Freed memory that stays in glibc's heap, such as after quantizing, would hold the model without any growth.
        with contextlib.suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)
        self._before_bytes = _status_bytes("VmRSS")

    def release(self) -> None: ...

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError) or (
            isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
        )


Device = CudaDevice | CpuDevice


def _status_bytes(field: str) -> int | None:
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def error_kind_of(error: BaseException, device: Device) -> ErrorKind:
    if isinstance(error, BenchmarkerError):
        return error.kind
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if device.is_out_of_memory(error):
        return "oom_host" if device.kind == "cpu" else "oom_gpu"
    return "oom_host" if isinstance(error, MemoryError) else "other"


def find_device(name: str = "auto") -> Device:
    """Return the device named `auto`, `cpu`, `cuda` or `cuda:1` (also on ROCm). Raises DeviceError."""
    import torch

    if name == "auto":
        return CudaDevice(torch.cuda.current_device()) if torch.cuda.is_available() else CpuDevice()
    if name == "cpu":
        return CpuDevice()
    if not (match := re.fullmatch(r"cuda(?::(\d+))?", name)):
        raise DeviceError(f"--device {name}: write auto, cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        built_for = "CUDA" if torch.version.cuda else "ROCm" if torch.version.hip else "CPUs only"
        reason = f"torch sees no GPU here (torch {torch.__version__} is built for {built_for})"
        remedy = "use --device cpu, or install a torch built for the GPU's driver"
        raise DeviceError(f"--device {name}: {reason}; {remedy}")
    index = int(match.group(1)) if match.group(1) else torch.cuda.current_device()
    if index >= torch.cuda.device_count():
        present = f"torch sees {torch.cuda.device_count()}, numbered from 0"
        raise DeviceError(f"--device {name}: there is no GPU {index}; {present}")
    return CudaDevice(index)


def devices_from(first: Device, count: int) -> tuple[Device, ...]:
    """Return `count` devices starting at `first`; for a CPU, the same one `count` times. Raises DeviceError."""
    if not isinstance(first, CudaDevice):
        return (first,) * count
    return tuple(find_device(f"cuda:{first.indices[0] + offset}") for offset in range(count))


def one_of_several(first: Device, count: int) -> Device:
    """Return `count` GPUs from `first` on as one device, for a process that uses them in turns. Raises DeviceError."""
    if not isinstance(first, CudaDevice):
        raise DeviceError("--split layers: a CPU has no second memory to put layers into; leave --gpus out")
    return CudaDevice(*(index for device in devices_from(first, count) for index in device.indices))
