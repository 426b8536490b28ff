"""Measurement of one implementation of an operation.

Order for each cell: profile one call for its kernels; compare output and gradients with float64; measure the memory of
both passes; time the calls. A single call of 50 us is shorter than its launch and the wait for the device. Therefore
each repeat runs as many calls as take 20 ms together, alternating over copies of the inputs, and reports the mean time
of a call. Two device events around the same calls give a second measurement.

`torch.set_float32_matmul_precision` sets the precision of float32 products for both cuBLAS and inductor in torch 2.8 to
2.13. The newer `torch.backends.cuda.matmul.fp32_precision` is only read: setting it alone breaks older code in torch.
"""

from __future__ import annotations

import re
import time
import warnings
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch._C._autograd import DeviceType

from benchmarker.core.errors import UnsupportedError
from benchmarker.hardware.device import Device
from benchmarker.measure.repeat import Step, calls_needed
from benchmarker.workloads.operation.operation_call import CallInputs, Implementation, Operation, results_of
from benchmarker.workloads.operation.record import OperationChecked, OperationSample, PassMemory, SeenKernel
from benchmarker.workloads.operation.spec import LengthPoint
from benchmarker.workloads.session import Bench, Session

MatmulPrecision = Literal["ieee", "tf32"]
Work = Callable[[CallInputs], object]
ImplementationT = TypeVar("ImplementationT", bound=Implementation)
RECORDED_KERNELS = 20  # Maximum number of kernels in a record.
NO_BACKEND = (
    "no available kernel",
    "no viable backend",
    "no valid engine configs",
    "no valid execution plans",
    "no valid triton configs",
    "not implemented for",
    "does not support",
    "does not require grad",
    "forward unsupported",
    "backward unsupported",
)
"""Lower-case parts of torch's error messages if no kernel supports the shape, type, device or backward pass."""
GENERIC_WARNINGS = ("not used because", "runtime disabled")  # Parts of those warnings of torch that contain no reason.
_FORWARD_ATTENTION = re.compile(r"(?i)^(?!autograd::)(?!.*Backward0$).*(attention|softmax|flex|CompiledFxGraph)")
"""Names of the operators that `kernels_of` returns on a CPU."""


def kernels_of(work: Callable[[], object], device: Device) -> tuple[SeenKernel, ...]:
    """Run the work once under the profiler; return the kernels on the device, longest first.

    On a CPU, return the operators of attention with the time of their callees.
    """
    on_cpu = device.kind == "cpu"
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    device.synchronize()
    opened: Any = torch.autograd.profiler.profile() if on_cpu else torch.profiler.profile(activities=activities)
    with opened as profiler:
        work()
        device.synchronize()
    times_us: dict[str, list[float]] = defaultdict(list)
    device_type = DeviceType.CPU if on_cpu else DeviceType.CUDA
    for event in (profiler.function_events if on_cpu else profiler.events()) or ():
        if event.device_type == device_type and (not on_cpu or _FORWARD_ATTENTION.search(event.name)):
            times_us[event.name].append(event.time_range.elapsed_us())
    kernels = (SeenKernel(name=name, calls=len(us), total_s=sum(us) / 1e6) for name, us in times_us.items())
    return tuple(sorted(kernels, key=lambda kernel: -kernel.total_s))


@contextmanager
def missing_kernel_is_unsupported() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        except (RuntimeError, NotImplementedError) as error:
            text = str(error)
            if not any(phrase in text.lower() for phrase in NO_BACKEND):
                raise
            reasons = [str(warning.message).split(" (Triggered")[0] for warning in caught]
            reason = next((line for line in reasons if not any(part in line for part in GENERIC_WARNINGS)), text)
            raise UnsupportedError(f"torch: {reason.strip().splitlines()[0][:300]}") from error


class CallTimes(NamedTuple):
    """Mean seconds of one call, by the host's clock and by device events, which a CPU does not have."""

    host_s: float
    event_s: float | None


class CallStep:
    def __init__(self, operation: Operation, copies: Sequence[CallInputs], device: Device) -> None:
        self._operation, self._device, self._copies = operation, device, cycle(copies)
        self._is_backward = copies[0].gradient is not None
        self._calls: dict[Work, int] = {}

    def __call__(self) -> OperationSample:
        work = self.work()
        times = self._timed(work)
        parts_s = split_passes(times.host_s, self._timed(self.forward).host_s) if self._is_backward else {}
        return OperationSample(latency_s=times.host_s, calls=self._calls[work], parts_s=parts_s, event_s=times.event_s)

    def forward(self, inputs: CallInputs) -> torch.Tensor:
        return self._operation.call(*inputs.tensors)

    def forward_backward(self, inputs: CallInputs) -> object:
        return torch.autograd.grad(self.forward(inputs), inputs.tensors, inputs.gradient)

    def work(self) -> Work:
        return self.forward_backward if self._is_backward else self.forward

    def times(self, work: Work, calls: int) -> CallTimes:
        with self._operation.around():
            self._device.synchronize()
            started_ns = time.perf_counter_ns()
            first = self._recorded_event()
            for _ in range(calls):
                work(next(self._copies))
            last = self._recorded_event()
            self._device.synchronize()
            host_s = (time.perf_counter_ns() - started_ns) / 1e9
        event_s = first.elapsed_time(last) / 1e3 / calls if first and last else None
        return CallTimes(host_s / calls, event_s)

    def _timed(self, work: Work) -> CallTimes:
        if work not in self._calls:
            self._calls[work] = calls_needed(lambda calls: self.times(work, calls).host_s * calls)
        return self.times(work, self._calls[work])

    def _recorded_event(self) -> torch.cuda.Event | None:
        if self._device.kind == "cpu":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device.torch_name))
        return event


def split_passes(both_s: float, forward_s: float) -> dict[str, float]:
    """Return the seconds of forward and backward pass; empty if noise made `forward_s` longer than `both_s`."""
    return {"forward": forward_s, "backward": both_s - forward_s} if both_s > forward_s else {}


def memory_of_passes(operation: Operation, inputs: CallInputs, device: Device) -> PassMemory:
    if device.kind == "cpu":
        return PassMemory()
    with operation.around():
        device.synchronize()
        before = torch.cuda.memory_allocated(device.torch_name)
        device.reset_peak()
        output = operation.call(*inputs.tensors)
        memory = {"forward_peak_bytes": (device.peak_memory().allocated_bytes or before) - before}
        if inputs.gradient is not None:
            memory["kept_bytes"] = torch.cuda.memory_allocated(device.torch_name) - before
            device.reset_peak()
            gradients = torch.autograd.grad(output, inputs.tensors, inputs.gradient)
            memory["backward_peak_bytes"] = (device.peak_memory().allocated_bytes or before) - before
            del gradients
    return PassMemory(**memory)


@contextmanager
def matmul_precision(dtype: str) -> Iterator[MatmulPrecision | None]:
    """Set the precision of float32 products for `dtype`; yield the precision that torch reports, None for 16 bits."""
    if dtype not in ("float32", "tf32"):
        yield None
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        matmul = torch.backends.cuda.matmul
        is_tf32 = matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32
        yield "tf32" if is_tf32 else "ieee"
    finally:
        torch.set_float32_matmul_precision(before)


class ReadyCall(NamedTuple):
    shape: Any
    operation: Operation
    copies: list[CallInputs]


class OperationBench(Bench, ABC, Generic[ImplementationT]):
    def __init__(self, implementation: ImplementationT, device: Device, cache_bytes: int | None) -> None:
        self.implementation, self.device, self.cache_bytes = implementation, device, cache_bytes
        # Call of the current cell only, because its inputs may fill the device's memory.
        self._ready: ReadyCall | None = None

    @abstractmethod
    def shape(self, point: LengthPoint) -> Any: ...

    @abstractmethod
    def copies(self, point: LengthPoint) -> list[CallInputs]: ...

    @abstractmethod
    def checked(self, ready: ReadyCall) -> OperationChecked:
        """Write new values into the inputs and compare the results of a call with float64. Raises WrongResultError."""

    def prepare(self, point: LengthPoint) -> ReadyCall:
        shape = self.shape(point)
        self.implementation.check_available(shape, self.device.kind)
        copies = self.copies(point)
        return ReadyCall(shape, self.implementation.open(shape, self.device.torch_name), copies)

    def correct(self, point: LengthPoint) -> Mapping[str, Any]:
        """Return the kernels, errors and memory of one call. Raises WrongResultError, and UnsupportedError if no kernel
        ran, or if the kernel of another implementation ran."""
        ready, fields = self.prove(point)
        passes = memory_of_passes(ready.operation, ready.copies[0], self.device)
        return {**fields, "passes": passes, "input_copies": len(ready.copies)}

    def prove(self, point: LengthPoint) -> tuple[ReadyCall, dict[str, Any]]:
        ready = self._ready = self.prepare(point)
        step, first = CallStep(ready.operation, ready.copies, self.device), ready.copies[0]
        with missing_kernel_is_unsupported():
            results_of(ready.operation, first)  # compiles, tunes, and loads libraries
        with ready.operation.around():
            kernels = kernels_of(lambda: step.work()(first), self.device)
        if not self.implementation.matches((kernel.name for kernel in kernels), self.device.kind):
            raise UnsupportedError(f"{self.name_kernels(kernels)} ran instead: a profiled call ran none of its kernels")
        checked = self.checked(ready)
        self.device.release()
        return ready, {"kernels": kernels[:RECORDED_KERNELS], "checked": checked}

    def step(self, point: LengthPoint) -> Step[OperationSample]:
        ready = self._ready or self.prepare(point)
        return CallStep(ready.operation, ready.copies, self.device)

    def name_kernels(self, kernels: tuple[SeenKernel, ...]) -> str:
        return kernels[0].name if kernels else "no kernel"


@contextmanager
def measured_limits(session: Session, dtype: str) -> Iterator[tuple[int | None, MatmulPrecision | None]]:
    """Set the matmul precision for `dtype` until the context ends, and measure the device's limits. Yield the bytes of
    the device's cache, None if unmeasured, and the precision that torch reports."""
    with matmul_precision(dtype) as precision:
        session.ready()
        limits = session.record.limits
        yield (limits.cache_bytes if limits else None), precision
