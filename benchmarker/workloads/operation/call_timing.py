"""Time and memory of one call.

A call of 50 us would be lost in the host's launch and in the wait for the device. Each repeat therefore runs as many
calls as take 20 ms together, over copies of the inputs in turn, and reports the mean of one call. Two device events
around the same calls give a second measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

from benchmarker.measure.repeat import calls_needed
from benchmarker.workloads.operation.call_inputs import CallInputs
from benchmarker.workloads.operation.implementation import Operation
from benchmarker.workloads.operation.record import OperationSample, PassMemory

if TYPE_CHECKING:
    import torch

    from benchmarker.hardware.device import Device

Work = Callable[[CallInputs], object]


class CallTimes(NamedTuple):
    host_s: float
    event_s: float | None
    """None on CPU, which has no device events."""


class CallStep:
    """Timed repeat of one cell."""

    def __init__(self, operation: Operation, copies: Sequence[CallInputs], device: Device) -> None:
        self._operation = operation
        self._device = device
        self._copies = cycle(copies)
        self._is_backward = copies[0].gradient is not None
        self._calls: dict[Work, int] = {}

    def __call__(self) -> OperationSample:
        work = self.work()
        times = self._timed(work)
        parts_s = split_passes(times.host_s, self._timed(self.forward).host_s) if self._is_backward else {}
        return OperationSample(latency_s=times.host_s, calls=self._calls[work], parts_s=parts_s, event_s=times.event_s)

    def forward(self, inputs: CallInputs) -> object:
        """Run one forward pass. It keeps the tensors of the backward pass if the inputs require a gradient."""
        return self._operation.call(*inputs.tensors)

    def forward_backward(self, inputs: CallInputs) -> object:
        import torch

        output = self._operation.call(*inputs.tensors)
        return torch.autograd.grad(output, inputs.tensors, inputs.gradient)

    def work(self) -> Work:
        return self.forward_backward if self._is_backward else self.forward

    def times(self, work: Work, calls: int) -> CallTimes:
        """Run that many calls in a row and read both clocks."""
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
        import torch

        if self._device.kind == "cpu":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device.torch_name))
        return event


def split_passes(both_s: float, forward_s: float) -> dict[str, float]:
    """Return the seconds of each pass; empty if noise makes the forward pass seem the longer one."""
    backward_s = both_s - forward_s
    return {"forward": forward_s, "backward": backward_s} if backward_s > 0 else {}


def memory_of_passes(operation: Operation, inputs: CallInputs, device: Device) -> PassMemory:
    """Run one call, and read the allocator's peaks after each pass."""
    import torch

    if device.kind == "cpu":
        return PassMemory()
    with operation.around():
        device.synchronize()
        before = torch.cuda.memory_allocated(device.torch_name)
        device.reset_peak()
        output = operation.call(*inputs.tensors)
        forward_peak = (device.peak().allocated_bytes or before) - before
        if inputs.gradient is None:
            return PassMemory(forward_peak_bytes=forward_peak)
        kept_bytes = torch.cuda.memory_allocated(device.torch_name) - before
        device.reset_peak()
        gradients = torch.autograd.grad(output, inputs.tensors, inputs.gradient)
        backward_peak = (device.peak().allocated_bytes or before) - before
        del output, gradients
    return PassMemory(forward_peak_bytes=forward_peak, kept_bytes=kept_bytes, backward_peak_bytes=backward_peak)
