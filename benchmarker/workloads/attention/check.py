"""What is known of a job before anything is measured: what it may not ask, its key, and the record's first fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarker.core.errors import FieldError, SpecError
from benchmarker.workloads.attention.record import AttentionVariantFacts
from benchmarker.workloads.attention.spec import AttentionJob, AttentionSubject, AttentionVariant
from benchmarker.workloads.attention.variants.registry import VARIANTS, implementation_of
from benchmarker.workloads.attention.variants.user_function import source_sha256


def resolve(variant: AttentionVariant) -> AttentionVariant:
    """The variant, whose implementation is there.

    Raises:
        FieldError: It is not.
    """
    try:
        implementation_of(variant.variant)
    except SpecError as error:
        raise FieldError(str(error), field="variant") from error
    return variant


def check(job: AttentionJob) -> None:
    """Refuse code that nobody trusts, and what attention has no measurement of.

    Raises:
        SpecError: With what to do.
    """
    if job.variant.variant not in VARIANTS and not job.subject.trust_code:
        raise SpecError(f"variant {job.variant.variant}: is code of your own, which is run; add --trust-code")
    if job.procedure.energy:
        raise SpecError("--energy: is not counted for attention; leave it out")


def check_typed(job: AttentionJob, typed: Mapping[str, Any]) -> None:  # noqa: ARG001
    """Refuse an option that would do nothing.

    Raises:
        SpecError: With what to leave out.
    """
    if typed.get("procedure.profile_tokens") is not None:
        raise SpecError("--profile-tokens: attention has no tokens to profile; leave it out")


def over(typed: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed. A batch size takes the place of a config's tokens, and tokens that of its batch size."""
    if typed.get("grid.tokens"):
        return {"grid.batch_size": [1], **typed}
    return {**typed, "grid.tokens": []} if typed.get("grid.batch_size") else dict(typed)


def key_parts(job: AttentionJob) -> dict[str, Any]:
    """All of layer and implementation that determines a result."""
    return {
        "subject": job.subject.model_dump(mode="json", exclude={"trust_code"}),
        "variant": job.variant.model_dump(mode="json", exclude={"name"}),
        "source_sha256": source_sha256(job.variant.variant),
    }


def record_fields(job: AttentionJob) -> dict[str, Any]:
    """Layer and implementation, as the record has them."""
    variant = job.variant
    return {
        "subject": AttentionSubject(**job.subject.model_dump(exclude={"trust_code"})),
        "variant": AttentionVariantFacts(
            name=variant.name,
            variant=variant.variant,
            dtype=job.dtype,
            options=variant.model_dump(exclude={"name"}),
        ),
    }


def inputs(job: AttentionJob, *, judged: bool) -> dict[str, str]:  # noqa: ARG001
    """The fingerprint of a function's file."""
    source = source_sha256(job.variant.variant)
    return {f"source of {job.variant.variant}": source} if source else {}
