"""Making a checkpoint ready to load: downloaded, written with random weights, or quantized, whatever it needs."""

from __future__ import annotations

from benchmarker.checkpoints.find import find_checkpoint
from benchmarker.hardware.device import Device
from benchmarker.quantization.base import Checkpoint, Progress, Target
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.experiment import ModelSpec, VariantSpec


def prepare_checkpoint(model: ModelSpec, variant: VariantSpec, device: Device, progress: Progress) -> Checkpoint:
    """The checkpoint that the variant's loader takes; the slow part is done once and cached.

    Raises:
        BenchmarkerError: The model cannot be had, or not in this form on this device.
    """
    found = find_checkpoint(model, variant, progress=progress, device=device.torch_name)
    target = Target(device.torch_name, model.dtype)
    return LOADERS[variant.quant].prepare(found, variant.loader_options, target, progress)
