"""Recording a decode step as a CUDA or HIP graph, so that a replay costs the host one launch instead of thousands.

A capture fails at any operation that waits for the device, such as copying a number to the host. The error message
contains the failing line of code, which shows the library whose operation cannot be captured.

If one of torch's own streams is recorded and a library launches a kernel on the default stream, the kernel runs at once
and is missing from the graph, whose replays are then fast and wrong. This file records a stream that synchronizes with
the default stream, so that such a launch is an error. The kernels in the graph are counted as well.
"""

from __future__ import annotations

import ctypes
import gc
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarker.engines.base import UnsupportedError
from benchmarker.hardware.device import Device

Step = Callable[[], None]
WARM_STEPS = 3  # Warm-up steps before a capture: they load and tune kernels and allocate workspaces.
LATE = "previous error during capture"
"""Part of CUDA's and HIP's error message if an earlier call broke the capture without reporting an error."""
NODES_THAT_RUN = (0, 1, 2)  # CUgraphNodeType and hipGraphNodeType of a kernel, a copy and a fill.
BROKEN = 2  # CUstreamCaptureStatus and hipStreamCaptureStatus of a capture that can no longer succeed.


@dataclass(frozen=True)
class Captured:
    replay: Step
    pool_bytes: int | None  # Bytes reserved for temporary tensors of a step. They count as free between replays.
    kernels: int | None = None
    """Kernels, copies and fills in the graph; None if the driver's library does not report them."""
    step: Step | None = None
    """Recorded function. It keeps the tensors that the step reads alive; the graph contains only their addresses."""


Capture = Callable[[Step], Captured]
"""Function that runs a step a few times and records it, or raises UnsupportedError. Tests pass a stand-in."""


def capture_for(device: Device) -> Capture | None:
    return None if device.kind == "cpu" else GraphCapture(device)


class GraphCapture:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._stream: Any = None

    def __call__(self, step: Step) -> Captured:
        with torch.cuda.device(self._device.torch_name):
            if self._stream is None:
                handle = ctypes.c_void_p()
                torch.cuda.check_error(torch.cuda.cudart().cudaStreamCreate(ctypes.addressof(handle)))
                self._stream = torch.cuda.ExternalStream(handle.value)
            self._warm(step)
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            before = torch.cuda.memory_reserved()
            try:
                # Thread-local as in torch's own graphs: other threads' calls to the device must not break the capture.
                with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                    step()
            except RuntimeError as error:
                _end_capture_of_random_numbers()
                if self._device.is_out_of_memory(error):
                    raise
                why = self._unrecorded(step) if LATE in str(error) else None
                why = why or operation(error)
                raise UnsupportedError(f"the decode step cannot be captured in a graph: {why}") from error
            kernels = DriverLibrary().kernels(graph.raw_cuda_graph())
            graph.instantiate()
            return Captured(graph.replay, max(0, torch.cuda.memory_reserved() - before), kernels, step)

    def _unrecorded(self, step: Step) -> str | None:
        """Capture again to find the module that broke the capture; return a sentence with its class, or None."""
        library = DriverLibrary()
        names: list[str] = []

        def check(module: Any, *_: Any) -> None:
            if not names and library.is_broken(self._stream.cuda_stream):
                names.append(type(module).__name__)

        hook = torch.nn.modules.module.register_module_forward_hook(check)
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=self._stream, capture_error_mode="thread_local"):
                step()
        except RuntimeError:
            _end_capture_of_random_numbers()
        finally:
            hook.remove()
        return f"{names[0]} launches a kernel that no graph can hold, as one on the default stream" if names else None

    def _warm(self, step: Step) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_STEPS):
                step()
        torch.cuda.current_stream().wait_stream(self._stream)
        self._device.synchronize()
        # A capture starts by emptying torch's memory cache. Emptied here, reserved memory grows only by the graph's.
        gc.collect()
        self._device.release()


class DriverLibrary:
    """CUDA's or HIP's own library, for facts about captures that torch does not expose."""

    def __init__(self) -> None:
        name, self._prefix = ("libamdhip64.so", "hip") if torch.version.hip else ("libcuda.so.1", "cu")
        try:
            self._library: ctypes.CDLL | None = ctypes.CDLL(name)
        except OSError:
            self._library = None

    def kernels(self, graph: int) -> int | None:
        count = ctypes.c_size_t()
        if not self._call("GraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count)):
            return None
        nodes = (ctypes.c_void_p * count.value)()
        if not self._call("GraphGetNodes", ctypes.c_void_p(graph), nodes, ctypes.byref(count)):
            return None
        kind, running = ctypes.c_int(), 0
        for node in nodes:
            if not self._call("GraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind)):
                return None
            running += kind.value in NODES_THAT_RUN
        return running

    def is_broken(self, stream: int) -> bool:
        state = ctypes.c_int()
        return self._call("StreamIsCapturing", ctypes.c_void_p(stream), ctypes.byref(state)) and state.value == BROKEN

    def _call(self, function: str, *arguments: Any) -> bool:
        called = getattr(self._library, self._prefix + function, None)
        return called is not None and called(*arguments) == 0


def _end_capture_of_random_numbers() -> None:
    """Let the current device draw random numbers again.

    After a failed capture, torch still marks its generator as being captured, and `torch.randn` raises an error. A
    clone of the generator's state has the same seed and offset, but not this mark.
    """
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


def operation(error: BaseException) -> str:
    """Return the failing line of code and its message, such as "rope.py:12 `n.item()`: operation not permitted"."""
    # If ending the capture failed as well, the first error is the informative one.
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/torch/" not in frame.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} `{frames[-1].line}`: " if frames else ""
    return place + (str(error).strip().splitlines() or [type(error).__name__])[0]
