"""One timed repeat: enough calls in a row that the clock and the drains do not count.

A call of 50 us would drown in the host's launch and in the wait for the device. So each repeat runs calls until they
take 20 ms together, over copies of the inputs in turn; what is reported is the mean of one call. The device's own clock
times the same calls between two events, and has to agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple, Protocol

from benchmarker.core.errors import WrongResultError
from benchmarker.measure.repeat import calls_needed
from benchmarker.workloads.attention.record import AttentionMemory, AttentionSample
from benchmarker.workloads.attention.reference import Results

if TYPE_CHECKING:
    from torch import Tensor

    from benchmarker.hardware.device import Device
    from benchmarker.workloads.attention.inputs import Inputs
    from benchmarker.workloads.attention.variants.base import Attention


class Operation(Protocol):
    """What is timed: one function of tensors, ready for one shape on one device."""

    @property
    def call(self) -> Callable[..., Tensor]: ...

    @property
    def around(self) -> Callable[[], AbstractContextManager[object]]:
        """Surrounds calls in a row."""


class OneCall(Protocol):
    """What goes into one call."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Arguments. All of them ask for a gradient where there is one of the output."""

    @property
    def gradient(self) -> Tensor | None:
        """Of the loss with respect to the output; None for the forward pass alone."""


Work = Callable[["OneCall"], object]


class Times(NamedTuple):
    """Mean of one call."""

    host_s: float
    event_s: float | None
    """None on CPU, which has no clock of its own."""


class AttentionStep:
    """One cell's repeat."""

    def __init__(self, attention: Operation, copies: Sequence[OneCall], device: Device) -> None:
        self._attention = attention
        self._device = device
        self._copies = cycle(copies)
        self._is_backward = copies[0].gradient is not None
        self._calls: dict[Work, int] = {}

    def __call__(self) -> AttentionSample:
        if not self._is_backward:
            times = self._timed(self.forward)
            return AttentionSample(latency_s=times.host_s, calls=self._calls[self.forward], event_s=times.event_s)
        times = self._timed(self.forward_backward)
        forward_s = self._timed(self.forward).host_s
        backward_s = times.host_s - forward_s
        parts_s = {"forward": forward_s, "backward": backward_s} if backward_s > 0 else {}
        calls = self._calls[self.forward_backward]
        return AttentionSample(latency_s=times.host_s, calls=calls, parts_s=parts_s, event_s=times.event_s)

    def forward(self, inputs: OneCall) -> object:
        """One forward pass; it keeps what the backward pass needs where the inputs ask for a gradient."""
        return self._attention.call(*inputs.tensors)

    def forward_backward(self, inputs: OneCall) -> object:
        """One forward and backward pass."""
        import torch

        output = self._attention.call(*inputs.tensors)
        return torch.autograd.grad(output, inputs.tensors, inputs.gradient)

    def work(self) -> Work:
        """What one call of this cell is."""
        return self.forward_backward if self._is_backward else self.forward

    def _timed(self, work: Work) -> Times:
        if work not in self._calls:
            self._calls[work] = calls_needed(lambda calls: self.times(work, calls).host_s * calls)
        return self.times(work, self._calls[work])

    def times(self, work: Work, calls: int) -> Times:
        """Run so many calls in a row, and read both clocks."""
        with self._attention.around():
            self._device.synchronize()
            started_ns = time.perf_counter_ns()
            events = _Events(self._device)
            for _ in range(calls):
                work(next(self._copies))
            event_s = events.elapsed_s()
            host_s = (time.perf_counter_ns() - started_ns) / 1e9
        return Times(host_s / calls, None if event_s is None else event_s / calls)


class _Events:
    """Two events around work on a GPU. Made when the first is recorded."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._first = self._recorded()

    def elapsed_s(self) -> float | None:
        """Record the second, drain the device, and read them."""
        last = self._recorded()
        self._device.synchronize()
        return None if self._first is None or last is None else self._first.elapsed_time(last) / 1e3

    def _recorded(self):  # type: ignore[no-untyped-def]
        import torch

        if self._device.kind == "cpu":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device.torch_name))
        return event


def results_of(attention: Attention, inputs: Inputs) -> Results:
    """One call's output, and its gradients where the inputs ask for them.

    Raises:
        WrongResultError: The output has another shape.
    """
    import torch

    with attention.around():
        output = attention.call(*inputs.tensors)
        if output.shape != inputs.query.shape:
            raise WrongResultError(
                f"wrong result: o has the shape {list(output.shape)}, not {list(inputs.query.shape)}"
            )
        if inputs.gradient is None:
            return {"o": output}
        # The output is used once more by who compares it, but its graph is not.
        gradients = torch.autograd.grad(output, inputs.tensors, inputs.gradient)
    return {"o": output.detach(), "dq": gradients[0], "dk": gradients[1], "dv": gradients[2]}


def memory_of_passes(attention: Operation, inputs: OneCall, device: Device) -> AttentionMemory:
    """Run one call in two parts, and read the allocator's marks after each."""
    import torch

    if device.kind == "cpu":
        return AttentionMemory()
    with attention.around():
        device.synchronize()
        before = torch.cuda.memory_allocated(device.torch_name)
        device.reset_peak()
        output = attention.call(*inputs.tensors)
        forward_peak = (device.peak().allocated_bytes or before) - before
        if inputs.gradient is None:
            return AttentionMemory(forward_peak_bytes=forward_peak)
        kept_bytes = torch.cuda.memory_allocated(device.torch_name) - before
        device.reset_peak()
        gradients = torch.autograd.grad(output, inputs.tensors, inputs.gradient)
        backward_peak = (device.peak().allocated_bytes or before) - before
        del output, gradients
    return AttentionMemory(forward_peak_bytes=forward_peak, kept_bytes=kept_bytes, backward_peak_bytes=backward_peak)
