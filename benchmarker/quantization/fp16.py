"""Baseline: the checkpoint's weights in 16 bits (or 32), not quantized."""

from __future__ import annotations

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.checkpoints.read_model import read_model
from benchmarker.quantization.base import FormOptions, Loaded, Loader


def load(checkpoint: Checkpoint, options: FormOptions, target: Target) -> Loaded:  # noqa: ARG001
    return Loaded(read_model(checkpoint, target))


LOADER: Loader = Loader(
    name="fp16",
    summary="unquantized weights, the baseline",
    options=FormOptions,
    load=load,
    aliases=("unquantized",),
    splits=("tensors", "layers"),
    bits=(16,),
)
