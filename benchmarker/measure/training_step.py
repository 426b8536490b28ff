"""One training step: forward, backward, optimizer. What is timed is the undivided step.

A step knows nothing of what it trains. It is given a loss and an optimizer, and runs

    loss().backward()      for each micro-batch, the loss divided by their number
    optimizer.step()
    optimizer.zero_grad()

No gradient is clipped and no learning rate changes. The undivided step has no mark and no wait inside, and its time is
the latency. Parts are timed in another step, where the device is drained after each; the profiled step is annotated
instead, so that a trace tells the sections apart by when the host launched the work, with no wait inside either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarker.hardware.device import Device
from benchmarker.profiling.sections import section_mark
from benchmarker.schema.training import RECOMPUTE, STEP_PARTS, StepMemory, StepPart, TrainingSample

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

Around = Callable[[StepPart], AbstractContextManager[None]]
Result = TypeVar("Result")


class TrainingStep:
    """A repeat of `measure`: call it for a timed step."""

    def __init__(
        self,
        loss: Callable[[], Tensor],
        optimizer: Optimizer,
        device: Device,
        *,
        accumulate: int = 1,
        parts: bool = True,
    ) -> None:
        """Wrap what is trained; nothing runs yet.

        Args:
            loss: Runs the forward pass of the next micro-batch, and returns its loss as a scalar with a graph.
            optimizer: Optimizer of the parameters that are trained.
            accumulate: Micro-batches of one step.
            parts: Whether each timed step is followed by one whose parts are timed.
        """
        self.loss = loss
        """Runs the forward pass of the next micro-batch and returns its loss, a scalar with a graph."""
        self._optimizer = optimizer
        self._device = device
        self._accumulate = accumulate
        self._is_divided = parts
        self._part: StepPart | None = None
        self._is_annotated = False
        self.losses: tuple[Tensor, ...] = ()
        """Loss of each micro-batch of the last step, a scalar without a graph, on the device."""

    def __call__(self) -> TrainingSample:
        """One timed step; then, where they are asked for, the times of the parts of another."""
        latency_s = self._timed(lambda part: nullcontext())
        return TrainingSample(latency_s=latency_s, drained_parts_s=self.parts() if self._is_divided else {})

    def parts(self) -> dict[StepPart, float]:
        """Seconds of each part of one step, the device drained after each."""
        times = dict.fromkeys(STEP_PARTS, 0.0)

        @contextmanager
        def timed(part: StepPart) -> Iterator[None]:
            started_ns = time.perf_counter_ns()
            yield
            self._device.synchronize()
            times[part] += (time.perf_counter_ns() - started_ns) / 1e9

        self._device.synchronize()
        self._run(timed)
        return times

    def profiled(self) -> TrainingSample:
        """One step with its parts annotated, for `measure.profile.profile_step`: they are the profile's sections."""
        from torch.profiler import record_function

        @contextmanager
        def annotated(part: StepPart) -> Iterator[None]:
            with record_function(section_mark(part)):
                yield

        self._is_annotated = True
        try:
            return TrainingSample(latency_s=self._timed(annotated))
        finally:
            self._is_annotated = False

    def memory(self) -> StepMemory:
        """Run one step, and read the allocator's marks around each part.

        With several micro-batches, what is kept is read after the first forward pass, and the peaks are of all.
        """
        device = self._device
        allocated = _allocated(device)
        if allocated is None:
            self._run(lambda part: nullcontext())
            return StepMemory()
        peaks: dict[StepPart, int] = {}
        after: dict[StepPart, int] = {}

        @contextmanager
        def watched(part: StepPart) -> Iterator[None]:
            device.reset_peak()
            yield
            device.synchronize()
            peaks[part] = max(peaks.get(part, 0), device.peak().allocated_bytes or 0)
            if part != "forward" or part not in after:
                after[part] = _allocated(device) or 0

        device.synchronize()
        before = _allocated(device) or 0
        self._run(watched)
        return StepMemory(
            before_bytes=before,
            kept_bytes=after["forward"] - before,
            gradient_bytes=after["backward"] - before,
            forward_peak_bytes=peaks["forward"],
            backward_peak_bytes=peaks["backward"],
            optimizer_peak_bytes=peaks["optimizer"],
        )

    def recomputing(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """The function, annotated where a profiled step calls it inside the backward pass.

        Wrap what is given to `torch.utils.checkpoint.checkpoint`: its second call is the recomputation.
        """

        def call(*arguments: Any, **named: Any) -> Result:
            from torch.profiler import record_function

            if self._part != "backward" or not self._is_annotated:
                return function(*arguments, **named)
            with record_function(section_mark(RECOMPUTE)):
                return function(*arguments, **named)

        return call

    def _timed(self, around: Around) -> float:
        self._device.synchronize()
        started_ns = time.perf_counter_ns()
        self._run(around)
        self._device.synchronize()
        return (time.perf_counter_ns() - started_ns) / 1e9

    def _run(self, around: Around) -> None:
        losses = []
        for _ in range(self._accumulate):
            with self._within("forward", around):
                loss = self.loss() / self._accumulate
            with self._within("backward", around):
                loss.backward()
            losses.append(loss.detach() * self._accumulate)
            # Its graph's last holder: the next forward pass would find the memory taken.
            del loss
        with self._within("optimizer", around):
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        self.losses = tuple(losses)

    @contextmanager
    def _within(self, part: StepPart, around: Around) -> Iterator[None]:
        self._part = part
        try:
            with around(part):
                yield
        finally:
            self._part = None


def _allocated(device: Device) -> int | None:
    """Bytes of live tensors; None on CPU."""
    import torch

    return None if device.kind == "cpu" else torch.cuda.memory_allocated(device.torch_name)
