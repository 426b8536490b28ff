"""Making a checkpoint ready to load: downloaded, written with random weights, or quantized, whatever it needs."""

from __future__ import annotations

from benchmarker.checkpoints.find import find_checkpoint
from benchmarker.hardware.device import Device
from benchmarker.quantization.base import Checkpoint, Progress, Target
from benchmarker.quantization.registry import LOADERS, loader_options
from benchmarker.schema.model import ModelSpec, QuantSpec


def prepare_checkpoint(model: ModelSpec, form: QuantSpec, device: Device, progress: Progress) -> Checkpoint:
    """The checkpoint that the variant's loader takes; the slow part is done once and cached.

    Raises:
        BenchmarkerError: The model cannot be had, or not in this form on this device.
    """
    found = find_checkpoint(model, form, progress=progress, device=device.torch_name)
    target = Target(device.torch_name, model.dtype)
    return LOADERS[form.quant].prepare(found, loader_options(form), target, progress)
