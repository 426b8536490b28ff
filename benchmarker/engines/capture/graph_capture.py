"""Recording a decode step as a CUDA or HIP graph, so that a replay costs the host one launch instead of thousands.

A capture fails on whatever must wait for the device, such as reading a number back. The message then names that line:
it tells which library's kernel cannot run this way.

A kernel that a library launches on the default stream, and not on the current one, is the other danger: while a stream
of torch's own is recorded, such a kernel runs at once and is missing in the graph, whose replays are then fast and
wrong. So a stream is recorded here that the default stream has to wait for: that launch is an error too. What the graph
holds is counted besides.
"""

from __future__ import annotations

import ctypes
import gc
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.capture.graph_driver import Driver
from benchmarker.hardware.device import Device, torch_device

Step = Callable[[], None]
WARM_STEPS = 3
"""Steps before a capture: they load and tune kernels and give them workspaces, while waiting is still allowed."""
LATE = "previous error during capture"
"""CUDA's and HIP's message where the call that spoiled the capture told no error itself, such as a launch that its
library does not check."""


@dataclass(frozen=True)
class Captured:
    """A recorded step."""

    replay: Step
    """Runs it again on the same memory."""
    pool_bytes: int | None
    """Memory set aside for the tensors that the step makes and drops, which count as free between replays."""
    kernels: int | None = None
    """Kernels, copies and fills in the graph; None where the driver's library does not say."""
    step: Step | None = None
    """What was recorded. A graph knows addresses alone: the tensors that the step reads must live as long as it."""


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
        self._stream: Any = None

    def __call__(self, step: Step) -> Captured:
        import torch

        with torch.cuda.device(torch_device(self._device)):
            self._stream = self._stream or _blocking_stream()
            self._warm(step)
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            before = torch.cuda.memory_reserved()
            try:
                # As torch's own graphs: what another thread does to the device meanwhile is not the step's fault.
                with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                    step()
            except RuntimeError as error:
                _end_capture_of_random_numbers()
                if self._device.is_out_of_memory(error):
                    raise
                why = self._unrecorded(step) if LATE in str(error) else None
                why = why or operation(error)
                raise UnsupportedError(f"the decode step cannot be captured in a graph: {why}") from error
            kernels = Driver().kernels(graph.raw_cuda_graph())
            graph.instantiate()
            return Captured(graph.replay, max(0, torch.cuda.memory_reserved() - before), kernels, step)

    def _unrecorded(self, step: Step) -> str | None:
        """Name of the module whose kernel spoiled the capture, in a sentence; None where none is found.

        The step is captured once more, and the capture's status is read after every module.
        """
        import torch

        driver = Driver()
        names: list[str] = []

        def look(module: Any, *_: Any) -> None:
            if not names and driver.is_spoiled(self._stream.cuda_stream):
                names.append(type(module).__name__)

        hook = torch.nn.modules.module.register_module_forward_hook(look)
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=self._stream, capture_error_mode="thread_local"):
                step()
        except RuntimeError:
            _end_capture_of_random_numbers()
        finally:
            hook.remove()
        return f"{names[0]} launches a kernel that no graph can hold, as one on the default stream" if names else None

    def _warm(self, step: Step) -> None:
        """Run the step on the stream that is captured, with nothing else under way, as torch asks before a capture.

        No cached memory is left.
        """
        import torch

        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_STEPS):
                step()
        torch.cuda.current_stream().wait_stream(self._stream)
        self._device.synchronize()
        # A capture empties the cache as it begins: done before the first reading, its growth is the graph's own.
        gc.collect()
        self._device.release()


def _blocking_stream() -> Any:
    """A stream that the default stream waits for, which torch's own are not."""
    import torch

    handle = ctypes.c_void_p()
    torch.cuda.check_error(torch.cuda.cudart().cudaStreamCreate(ctypes.addressof(handle)))
    return torch.cuda.ExternalStream(handle.value)


def _end_capture_of_random_numbers() -> None:
    """Let the current device draw random numbers again.

    torch leaves the state of its generator "being captured" where a capture fails, and every later `torch.randn` then
    ends in an error. A copy of the state has the same seed and offset, and is not being captured.
    """
    import torch

    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


def operation(error: BaseException) -> str:
    """The line of code at which it happened, and the first line of what was said.

    Where ending the capture failed as well, the first error is the one that tells.
    """
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/torch/" not in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} `{frames[-1].line}`: " if frames else ""
    return where + (str(error).strip().splitlines() or [type(error).__name__])[0]
