"""Recording a decode step as a CUDA or HIP graph, so that a replay costs the host one launch instead of thousands.

A capture fails on whatever must wait for the device, such as reading a number back. The message then names that line:
it tells which library's kernel cannot run this way.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarker.device import Device, torch_device
from benchmarker.runtimes.base import UnsupportedError

Step = Callable[[], None]
WARM_STEPS = 3
"""Before a capture: kernels are loaded, tuned and given their workspaces where waiting is still allowed."""


@dataclass(frozen=True)
class Captured:
    """A recorded step."""

    replay: Step
    """Runs it again on the same memory."""
    pool_bytes: int | None
    """Memory set aside for the tensors that the step makes and drops, which count as free between replays."""


class Capture(Protocol):
    """The part that needs a device."""

    def __call__(self, step: Step) -> Captured:
        """Run the step some times, and record it once.

        Raises:
            UnsupportedError: Something in it cannot be recorded.
        """


def capture_for(device: Device) -> Capture | None:
    """How this device records; None where there is nothing to record for."""
    return None if device.kind == "cpu" else GraphCapture(device)


class GraphCapture:
    """torch.cuda.CUDAGraph, which is a HIP graph on ROCm."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __call__(self, step: Step) -> Captured:
        import torch

        with torch.cuda.device(torch_device(self._device)):
            self._warm(step)
            graph = torch.cuda.CUDAGraph()
            before = torch.cuda.memory_reserved()
            try:
                # As torch's own graphs: what another thread does to the device meanwhile is not the step's fault.
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    step()
            except RuntimeError as error:
                if self._device.is_out_of_memory(error):
                    raise
                raise UnsupportedError(f"the decode step cannot be captured in a graph: {operation(error)}") from error
            return Captured(graph.replay, max(0, torch.cuda.memory_reserved() - before))

    def _warm(self, step: Step) -> None:
        """As torch asks for it: on a stream of its own, with nothing else under way. Leaves no cached memory."""
        import torch

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_STEPS):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self._device.synchronize()
        # A capture empties the cache as it begins: done before the first reading, its growth is the graph's own.
        gc.collect()
        self._device.release()


def operation(error: BaseException) -> str:
    """The line of code at which it happened, and the first line of what was said.

    Where ending the capture failed as well, the first error is the one that tells.
    """
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/torch/" not in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} `{frames[-1].line}`: " if frames else ""
    return where + (str(error).strip().splitlines() or [type(error).__name__])[0]
