"""Fake device that logs calls, fake GPU, fake pynvml, and a step with given latencies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Literal

from benchmarker.hardware.device import PeakMemory
from benchmarker.hardware.gpu import GpuState
from benchmarker.workloads.generation.record import GenerationSample


class FakeDevice:
    """Device that logs its calls and reports `peak_bytes` as the memory peak."""

    torch_name = "cpu"
    indices = (0,)
    kind: Literal["cuda", "rocm", "cpu"] = "cuda"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.peak_bytes = 7

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def reset_peak(self) -> None:
        self.calls.append("reset_peak")

    def begin_growth(self) -> None:
        self.calls.append("begin_growth")

    def peak_memory(self) -> PeakMemory:
        self.calls.append("peak")
        return PeakMemory(allocated_bytes=self.peak_bytes, reserved_bytes=2 * self.peak_bytes)

    def release(self) -> None:
        self.calls.append("release")

    def is_out_of_memory(self, error: BaseException) -> bool:
        return "out of memory" in str(error)


class FakeGpu:
    """GPU whose driver reports no value; tests override attributes and methods."""

    vendor = "NVIDIA"
    name: str | None = None
    uuid: str | None = None
    driver: str | None = None
    newest_cuda: str | None = None
    is_sliced = False

    def used_bytes(self) -> int | None:
        return None

    def energy_j(self) -> float | None:
        return None

    def power_w(self) -> float | None:
        return None

    def power_limit_w(self) -> float | None:
        return None

    def power_default_w(self) -> float | None:
        return None

    def temperature_c(self) -> float | None:
        return None

    def clock_mhz(self) -> int | None:
        return None

    def full_clock_mhz(self) -> int | None:
        return None

    def memory_bytes_per_s(self) -> float | None:
        return None

    def process_ids(self) -> tuple[int, ...] | None:
        return None

    def state(self) -> GpuState:
        return GpuState(time.time(), throttled_by=None)


class FakeNvml(ModuleType):
    """pynvml with the functions `answers`, each given by its value or as a function; others raise NVMLError."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception): ...

    def __init__(self, **answers: Any) -> None:
        super().__init__("pynvml")
        self.answers = {"nvmlInit": None, "nvmlSystemGetDriverVersion": "580.159.04", **answers}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self.answers:
            raise self.NVMLError(name)
        answer = self.answers[name]
        return answer if callable(answer) else lambda *arguments: answer

    def lookup(self, values: dict[Any, Any]) -> Callable[[Any], Any]:
        """Return a function that raises NVMLError for a key without a value."""

        def value_of(key: Any) -> Any:
            if values.get(key) is None:
                raise self.NVMLError(key)
            return values[key]

        return value_of


class Timeline:
    """Step with the given latencies, then always the last one."""

    def __init__(self, latencies_s: Sequence[float]) -> None:
        self._latencies_s = list(latencies_s)
        self.repeats = 0

    def __call__(self) -> GenerationSample:
        latency_s = self._latencies_s[min(self.repeats, len(self._latencies_s) - 1)]
        self.repeats += 1
        return GenerationSample(latency_s=latency_s, new_tokens=10)
