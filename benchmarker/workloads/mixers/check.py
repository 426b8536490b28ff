"""What is known of a job before anything is measured: what it may not ask, its key, and the record's first fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarker.core.errors import FieldError, SpecError
from benchmarker.workloads.mixers.held_out_text import held_out_bytes
from benchmarker.workloads.mixers.record import MixersVariantFacts
from benchmarker.workloads.mixers.spec import MixersJob, MixersVariant
from benchmarker.workloads.mixers.variants.registry import implementation_of


def resolve(variant: MixersVariant) -> MixersVariant:
    """The variant, whose implementation is there.

    Raises:
        FieldError: It is not.
    """
    try:
        implementation_of(variant.variant)
    except SpecError as error:
        raise FieldError(str(error), field="variant") from error
    return variant


def check(job: MixersJob) -> None:
    """Refuse what mixers have no measurement of.

    Raises:
        SpecError: With what to do.
    """
    if job.procedure.energy:
        raise SpecError("--energy: is not counted for mixers; leave it out")
    tasks = job.subject.tasks
    if "bytes" in tasks.names and tasks.text_len >= held_out_bytes():
        most = f"{held_out_bytes() - 1:,}"
        raise SpecError(
            f"text_len: {tasks.text_len:,} bytes are more than the text to judge by has; give {most} or less"
        )


def check_typed(job: MixersJob, typed: Mapping[str, Any]) -> None:  # noqa: ARG001
    """Refuse an option that would do nothing.

    Raises:
        SpecError: With what to leave out.
    """
    if typed.get("procedure.profile_tokens") is not None:
        raise SpecError("--profile-tokens: mixers have no tokens to profile; leave it out")


def record_fields(job: MixersJob) -> dict[str, Any]:
    """Layer and implementation, as the record has them."""
    implementation = implementation_of(job.variant.variant)
    return {
        "subject": job.subject,
        "variant": MixersVariantFacts(
            name=job.variant.name,
            options=job.variant.model_dump(exclude={"name"}),
            variant=job.variant.variant,
            mixer=implementation.mixer.name,
            implementation=implementation.source,
        ),
    }
