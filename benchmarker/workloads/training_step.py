"""One training step and its record: forward, backward, optimizer.

    loss().backward()      for each micro-batch, the loss divided by their number
    optimizer.step()
    optimizer.zero_grad()

Gradients are not clipped and the learning rate is constant. The latency is the time of a step that waits for the device
only at its end. Forward, backward and optimizer are timed in a second step, which waits for the device after each of
them. In a profiled step they are annotated, and the trace assigns each kernel by the time of its launch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from pydantic import Field

from benchmarker.hardware.device import Device
from benchmarker.profiling.chrome_trace import SECTION_MARK
from benchmarker.schema.base import Plain, Seconds, Whole
from benchmarker.schema.record import SampleBase

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

StepPart = Literal["forward", "backward", "optimizer"]
STEP_PARTS: tuple[StepPart, ...] = get_args(StepPart)
RECOMPUTE = "recompute"
"""Name of the profile's section for forward passes that gradient checkpointing repeats in the backward pass."""


class TrainingSample(SampleBase):
    """One timed training step. `latency_s` is its time without waits for the device between its parts."""

    drained_parts_s: dict[StepPart, Seconds] = Field(default_factory=dict)
    """Seconds of forward, backward and optimizer in a second step, which waits for the device after each of them. Their
    sum is a little longer than `latency_s`, because the host cannot run ahead. Empty if not requested."""


class StepMemory(Plain):
    """Bytes of live tensors around one untimed step. None on CPU."""

    before_bytes: Whole | None = None
    """Bytes before the step: weights and optimizer state. Gradients are freed at the end of each step."""
    kept_bytes: Whole | None = None
    """Bytes that the forward pass keeps for the backward pass: bytes after it minus bytes before it."""
    gradient_bytes: Whole | None = None
    """Bytes of gradients: bytes between backward pass and optimizer minus bytes before the step."""
    forward_peak_bytes: Whole | None = None
    """Peak bytes of the forward pass, weights included."""
    backward_peak_bytes: Whole | None = None
    """Peak bytes of the backward pass, weights included."""
    optimizer_peak_bytes: Whole | None = None
    """Peak bytes of the optimizer, weights included."""


Around = Callable[[StepPart], AbstractContextManager[object]]
Result = TypeVar("Result")


@dataclass(eq=False)
class TrainingStep:
    """Callable that runs and times one training step."""

    loss: Callable[[], Tensor]
    """Function that runs the forward pass of the next micro-batch and returns its loss, a scalar with a graph."""
    optimizer: Optimizer
    device: Device
    _: KW_ONLY
    accumulate: int = 1  # Micro-batches per step.
    times_parts: bool = True  # Run a second step after each timed step, to time forward, backward and optimizer.
    losses: tuple[Tensor, ...] = ()
    """Loss of each micro-batch of the last step: scalars on the device, without a graph."""
    _part: StepPart = "forward"
    _is_annotated: bool = False

    def __call__(self) -> TrainingSample:
        latency_s = self._timed(lambda part: nullcontext())
        return TrainingSample(latency_s=latency_s, drained_parts_s=self.parts() if self.times_parts else {})

    def parts(self) -> dict[StepPart, float]:
        """Run one step that waits for the device after each part; return the seconds of each part."""
        times = dict.fromkeys(STEP_PARTS, 0.0)

        @contextmanager
        def timed(part: StepPart) -> Iterator[None]:
            started_ns = time.perf_counter_ns()
            yield
            self.device.synchronize()
            times[part] += (time.perf_counter_ns() - started_ns) / 1e9

        self.device.synchronize()
        self._run(timed)
        return times

    def profiled(self) -> TrainingSample:
        from torch.profiler import record_function

        self._is_annotated = True
        try:
            return TrainingSample(latency_s=self._timed(lambda part: record_function(SECTION_MARK + part)))
        finally:
            self._is_annotated = False

    def memory(self) -> StepMemory:
        """Run one step and return the allocator's bytes around forward, backward and optimizer."""
        import torch

        device = self.device
        if device.kind == "cpu":
            self._run(lambda part: nullcontext())
            return StepMemory()
        peaks: dict[StepPart, int] = {}
        after: dict[StepPart, int] = {}

        @contextmanager
        def watched(part: StepPart) -> Iterator[None]:
            device.reset_peak()
            yield
            device.synchronize()
            peaks[part] = max(peaks.get(part, 0), device.peak_memory().allocated_bytes or 0)
            if part != "forward" or part not in after:
                after[part] = torch.cuda.memory_allocated(device.torch_name)

        device.synchronize()
        before = torch.cuda.memory_allocated(device.torch_name)
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
        """Wrap a checkpointed function: in a profiled step, its calls in the backward pass are annotated RECOMPUTE."""

        def call(*arguments: Any, **named: Any) -> Result:
            from torch.profiler import record_function

            if self._part != "backward" or not self._is_annotated:
                return function(*arguments, **named)
            with record_function(SECTION_MARK + RECOMPUTE):
                return function(*arguments, **named)

        return call

    def _timed(self, around: Around) -> float:
        self.device.synchronize()
        started_ns = time.perf_counter_ns()
        self._run(around)
        self.device.synchronize()
        return (time.perf_counter_ns() - started_ns) / 1e9

    def _run(self, around: Around) -> None:
        losses = []
        for _ in range(self.accumulate):
            self._part = "forward"
            with around("forward"):
                loss = self.loss() / self.accumulate
            self._part = "backward"
            with around("backward"):
                loss.backward()
            losses.append(loss.detach() * self.accumulate)
            # Free the graph, because the next forward pass needs its memory.
            del loss
        self._part = "optimizer"
        with around("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.losses = tuple(losses)


def autocast(device: str, dtype: str) -> AbstractContextManager[Any]:
    """Return torch's autocast context for products in `dtype`; an empty context for float32."""
    import torch

    if dtype == "float32":
        return nullcontext()
    return torch.autocast(device.split(":")[0], dtype=getattr(torch, dtype))
