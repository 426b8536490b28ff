"""What is known of a job before anything is measured: what it may not ask, and the record's first fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarker.core.errors import DeviceError, FieldError, SpecError
from benchmarker.workloads.context_parallel.record import ContextParallelVariantFacts
from benchmarker.workloads.context_parallel.spec import ContextParallelJob, ContextParallelVariant
from benchmarker.workloads.context_parallel.variants.registry import splitting_of, wrong_shape


def resolve(variant: ContextParallelVariant) -> ContextParallelVariant:
    """The variant, whose way to split is there.

    Raises:
        FieldError: It is not.
    """
    try:
        splitting_of(variant.variant)
    except SpecError as error:
        raise FieldError(str(error), field="variant") from error
    return variant


def check(job: ContextParallelJob) -> None:
    """Refuse what cannot be split, before any process is started.

    Raises:
        SpecError: With what to do.
    """
    if job.procedure.energy:
        raise SpecError("--energy: is not counted over several GPUs; leave it out")
    for point in job.grid.points():
        problem = wrong_shape(job.variant.variant, job.variant.kernel, job.subject, point)
        if problem:
            raise SpecError(problem)


def look_for(job: ContextParallelJob) -> str | None:
    """See before a sweep that there are as many GPUs as ranks.

    Raises:
        DeviceError: There are fewer.
    """
    refuse_missing_devices(job, max(job.grid.ranks))
    return None


def refuse_missing_devices(job: ContextParallelJob, ranks: int) -> None:
    """Refuse more ranks than there are GPUs.

    Raises:
        DeviceError: With how many there are.
    """
    if splitting_of(job.variant.variant).is_alone:
        return
    from benchmarker.distributed.rank import is_torchrun
    from benchmarker.hardware.device import CudaDevice, find_device

    if is_torchrun():
        from benchmarker.distributed.torchrun import world_size

        if ranks > world_size():
            raise DeviceError(f"ranks: torchrun started {world_size()} processes, fewer than {ranks} ranks")
        return
    device = find_device(job.device)
    if not isinstance(device, CudaDevice):
        return
    import torch

    count = torch.cuda.device_count() - device.index
    if ranks > count:
        where = f" from {device.torch_name} on" if device.index else ""
        raise DeviceError(f"ranks: {ranks} need as many GPUs; there are {count}{where}; give --ranks {count} or less")


def check_typed(job: ContextParallelJob, typed: Mapping[str, Any]) -> None:  # noqa: ARG001
    """Refuse an option that would do nothing.

    Raises:
        SpecError: With what to leave out.
    """
    if typed.get("procedure.profile_tokens") is not None:
        raise SpecError("--profile-tokens: attention has no tokens to profile; leave it out")


def record_fields(job: ContextParallelJob) -> dict[str, Any]:
    """Layer and way to split, as the record has them."""
    variant = job.variant
    return {
        "subject": job.subject,
        "variant": ContextParallelVariantFacts(
            name=variant.name,
            variant=variant.variant,
            kernel=variant.kernel,
            options=variant.model_dump(exclude={"name"}),
        ),
    }
