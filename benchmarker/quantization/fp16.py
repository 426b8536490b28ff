"""The baseline: the checkpoint's weights in 16 bit (or 32), nothing quantized."""

from __future__ import annotations

from benchmarker.checkpoints.base import Checkpoint, Progress, Target
from benchmarker.checkpoints.read_model import read_model
from benchmarker.quantization.base import FormOptions, Loaded, Loader


class FP16Options(FormOptions):
    """It has none of its own; the type is chosen with `--dtype`."""


def load(checkpoint: Checkpoint, options: FP16Options, target: Target, progress: Progress) -> Loaded:  # noqa: ARG001
    """Read the weights straight onto the device."""
    return Loaded(read_model(checkpoint, target))


LOADER: Loader = Loader(
    name="fp16",
    summary="16-bit weights, the baseline",
    options=FP16Options,
    packages=(),
    load=load,
    aliases=("unquantized",),
    splits=("tensors", "layers"),
    bits=(16,),
)
