"""Recording a decode step as a CUDA or HIP graph, so that a replay costs the host one launch instead of thousands.

A capture fails on any operation that waits for the device, such as reading a number back. The error then names that
line, which shows whose kernel cannot run this way.

While a stream of torch's own is recorded, a kernel that a library launches on the default stream runs at once and is
missing from the graph, whose replays are then fast and wrong. Here the default stream has to wait for the recorded one,
which turns such a launch into an error. The kernels in the graph are counted as well.
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
from benchmarker.hardware.device import Device, torch_device

Step = Callable[[], None]
WARM_STEPS = 3  # Steps before a capture, in which kernels are loaded and tuned and get workspaces.
LATE = "previous error during capture"
"""Message of CUDA and HIP if the call that broke the capture reported no error itself."""
NODES_THAT_RUN = (0, 1, 2)  # CUgraphNodeType and hipGraphNodeType of a kernel, a copy and a fill.
BROKEN = 2  # CUstreamCaptureStatus and hipStreamCaptureStatus of a capture that can no longer succeed.


@dataclass(frozen=True)
class Captured:
    replay: Step
    pool_bytes: int | None  # Memory reserved for temporary tensors of the step, which count as free between replays.
    kernels: int | None = None
    """Kernels, copies and fills in the graph; None if the driver's library does not report them."""
    step: Step | None = None
    """Function that was recorded. A graph contains only addresses: tensors that the step reads must live as long."""


Capture = Callable[[Step], Captured]
"""Runs a step a few times and records it, or raises UnsupportedError. The tests have one that needs no device."""


def capture_for(device: Device) -> Capture | None:
    return None if device.kind == "cpu" else GraphCapture(device)


class GraphCapture:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._stream: Any = None

    def __call__(self, step: Step) -> Captured:
        with torch.cuda.device(torch_device(self._device)):
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
        """Capture once more, and return a sentence with the module that broke the capture; None if none is found."""
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
        # A capture empties the cache at its start. Emptied before the first reading, all growth is the graph's own.
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

    After a failed capture torch's generator is still "being captured", and `torch.randn` raises. A copy of its state
    has the same seed and offset, and is not being captured.
    """
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


def operation(error: BaseException) -> str:
    """Return the line of code that failed, and the first line of its message."""
    # If ending the capture failed as well, the first error is the informative one.
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/torch/" not in frame.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} `{frames[-1].line}`: " if frames else ""
    return place + (str(error).strip().splitlines() or [type(error).__name__])[0]
