"""The decode step as the libraries wrote it, captured once as a CUDA or HIP graph and then replayed.

`generate` has Python launch every kernel of every layer for every token: two thousand launches, while the GPU waits.
Replayed from a graph the same kernels follow each other without the host, so that their own time is what counts. Any
kernel that a quantization brings will do, as long as it never waits for the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarker.hardware.device import Device
from benchmarker.runtimes.base import Generation, UnsupportedError
from benchmarker.runtimes.capture import Capture, capture_for
from benchmarker.runtimes.loop import FixedRuntime

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


class GraphRuntime(FixedRuntime):
    """A fixed cache, and one captured decode step per cache shape."""

    name = "graph"

    def __init__(self, model: PreTrainedModel, device: Device, *, capture: Capture | None = None) -> None:
        """Args:
        capture: In place of the device's own.
        """
        super().__init__(model, device, capture=capture or capture_for(device))

    def generate(self, prompt: Tensor, new_tokens: int, *, context: Tensor | None = None) -> Generation:
        """See Runtime.generate. The first call at a new shape captures."""
        if self._capture is None:
            raise UnsupportedError("a CPU has no graphs to capture; use --runtime eager or compile there")
        return super().generate(prompt, new_tokens, context=context)
