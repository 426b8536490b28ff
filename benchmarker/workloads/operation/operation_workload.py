"""Methods that the workloads of operations share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import FieldError, SpecError
from benchmarker.schema.options import Option
from benchmarker.workloads.base import JobT, RecordT, RowT, Workload

if TYPE_CHECKING:
    from benchmarker.comparison.rows import Circumstance


SEED_FLAG = {"subject.seed": "--input-seed"}
"""A sweep has a `--seed` of its own."""


class OperationWorkload(Workload[JobT, RecordT, RowT]):
    unit = "call"
    must_be_equal = ("layer",)
    subject_fields = ("subject",)
    replaceable_fields: frozenset[str] = frozenset()
    """Fields of the subject that a variant may replace."""

    def options(self) -> list[Option]:
        from benchmarker.schema.options import field_options

        return field_options(self.job, flags=SEED_FLAG)

    def overlay(self, typed: Mapping[str, Any]) -> dict[str, Any]:
        """Let a batch size replace a config's tokens, and tokens its batch size."""
        if typed.get("grid.tokens"):
            return {"grid.batch_size": [1], **typed}
        return {**typed, "grid.tokens": []} if typed.get("grid.batch_size") else dict(typed)

    def registered(self, name: str) -> object:
        raise NotImplementedError

    def resolve(self, variant: Any) -> Any:
        try:
            self.registered(variant.variant)
        except SpecError as error:
            raise FieldError(str(error), field="variant") from error
        return variant

    def check(self, job: JobT, typed: Mapping[str, Any]) -> None:
        if typed.get("procedure.profile_tokens") is not None:
            raise SpecError("--profile-tokens: a call has no tokens to profile; leave it out")
        if job.procedure.energy:
            raise SpecError(f"--energy: is not counted for {self.name}; leave it out")

    def record_fields(self, job: JobT) -> dict[str, Any]:
        variant: Any = job.variant
        facts: Any = self.record.model_fields["variant"].annotation
        shared = {"name": variant.name, "variant": variant.variant, "options": variant.model_dump(exclude={"name"})}
        return {"subject": job.subject, "variant": facts(**shared, **self.variant_facts(job))}

    def variant_facts(self, job: JobT) -> dict[str, Any]:
        raise NotImplementedError

    def circumstances(self, records: Sequence[Any]) -> Mapping[str, Circumstance]:  # noqa: ARG002
        return {"layer": self.layer_text}

    def layer_text(self, record: Any) -> str:
        values = record.subject.model_dump(mode="json", exclude=self.replaceable_fields, exclude_none=True)
        return ", ".join(f"{name} {value}" for name, value in values.items())
