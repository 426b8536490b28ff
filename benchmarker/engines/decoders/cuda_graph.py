"""The decode step as the libraries wrote it, captured once as a CUDA or HIP graph and then replayed.

`generate` has Python launch every kernel of every layer for every token: two thousand launches, while the GPU waits.
Replayed from a graph the same kernels follow each other without the host, so that their own time is what counts. Any
kernel that a quantization brings will do, as long as it never waits for the device. Attention is torch's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarker.engines.capture.graph_capture import Capture, capture_for
from benchmarker.engines.decoders.decode_loop import StaticCacheDecoder
from benchmarker.hardware.device import Device

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class CudaGraphDecoder(StaticCacheDecoder):
    """A static cache, and one captured decode step per cache shape."""

    name = "cuda_graph"

    def __init__(self, model: PreTrainedModel, device: Device, *, capture: Capture | None = None) -> None:
        """Args:
        capture: In place of the device's own.
        """
        super().__init__(model, device, capture=capture or capture_for(device))
