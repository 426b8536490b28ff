"""What CUDA's or HIP's own library tells about captures, where torch does not ask it."""

from __future__ import annotations

import ctypes
from typing import Any

NODES_THAT_RUN = (0, 1, 2)
"""Values of CUgraphNodeType and hipGraphNodeType for a kernel, a copy and a fill."""
SPOILED = 2
"""Value of CUstreamCaptureStatus and hipStreamCaptureStatus for a capture that goes on but can no longer succeed."""


class Driver:
    """The driver's library; where it is not found, it tells nothing."""

    def __init__(self) -> None:
        import torch

        name, self._prefix = ("libamdhip64.so", "hip") if torch.version.hip else ("libcuda.so.1", "cu")
        try:
            self._library: ctypes.CDLL | None = ctypes.CDLL(name)
        except OSError:
            self._library = None

    def kernels(self, graph: int) -> int | None:
        """Kernels, copies and fills in a graph.

        Args:
            graph: Its handle, a cudaGraph_t or hipGraph_t.
        """
        count = ctypes.c_size_t()
        if not self._done("GraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count)):
            return None
        nodes = (ctypes.c_void_p * count.value)()
        if not self._done("GraphGetNodes", ctypes.c_void_p(graph), nodes, ctypes.byref(count)):
            return None
        kind, running = ctypes.c_int(), 0
        for node in nodes:
            if not self._done("GraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind)):
                return None
            running += kind.value in NODES_THAT_RUN
        return running

    def is_spoiled(self, stream: int) -> bool:
        """Whether something that cannot be recorded has ended the capture of a stream."""
        state = ctypes.c_int()
        return self._done("StreamIsCapturing", ctypes.c_void_p(stream), ctypes.byref(state)) and state.value == SPOILED

    def _done(self, function: str, *arguments: Any) -> bool:
        called = getattr(self._library, self._prefix + function, None)
        return called is not None and called(*arguments) == 0
