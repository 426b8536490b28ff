"""What a workload does where its description says nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarker.schema.job import Job
from benchmarker.schema.record import VariantFacts


def unchanged(variant: Any) -> Any:
    """A variant whose names are in no registry."""
    return variant


def as_typed(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Takes the place of nothing else."""
    return dict(typed)


def nothing_wrong(job: Any, typed: Mapping[str, Any] | None = None) -> None:
    """Refuses nothing."""


def plain_parts(job: Job) -> dict[str, Any]:
    """Subject and variant, as they were asked for."""
    return {
        "subject": job.subject.model_dump(mode="json"),
        "variant": job.variant.model_dump(mode="json", exclude={"name"}),
    }


def plain_facts(job: Job) -> dict[str, Any]:
    """The variant with all its options."""
    return {"variant": VariantFacts(name=job.variant.name, options=job.variant.model_dump(exclude={"name"}))}


def plain_dtype(job: Job) -> str:
    """The variant's type, or the subject's."""
    dtype = getattr(job.variant, "dtype", None) or getattr(job.subject, "dtype", None)
    return dtype or "float32"


def same_subject(first: Job, second: Job) -> bool:
    """Whether two jobs are of the same subject."""
    return first.subject == second.subject


def one_process(job: Job) -> int:  # noqa: ARG001
    """The run's own process, and no other."""
    return 1


def no_inputs(job: Job, *, judged: bool) -> dict[str, str]:  # noqa: ARG001
    """Reads no file."""
    return {}


def nothing_to_prepare(job: Any, device: Any, progress: Any) -> None:
    """Needs nothing on disk."""


def nothing_lacks(job: Job) -> str | None:  # noqa: ARG001
    """Nothing is known to be missing."""
    return None


def nothing_to_look_for(job: Job) -> str | None:  # noqa: ARG001
    """Needs nothing that could be missing."""
    return None
