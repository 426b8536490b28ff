"""The slow part of loading, done ahead: a download, random weights, or quantizing, kept in the cache."""

from __future__ import annotations

from benchmarker.checkpoints.base import Progress
from benchmarker.hardware.device import Device
from benchmarker.quantization.prepare import prepare_checkpoint
from benchmarker.workloads.generation.spec import GenerationJob


def prepare_job(job: GenerationJob, device: Device, progress: Progress) -> None:
    """Make the checkpoint that the job's variant loads.

    Raises:
        BenchmarkerError: The model cannot be had, or not in this form on this device.
    """
    prepare_checkpoint(job.model, job.variant, device, progress)
