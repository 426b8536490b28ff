"""Attention as a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from benchmarker.schema.option import Option
from benchmarker.workloads.attention import declared
from benchmarker.workloads.attention.record import AttentionRecord
from benchmarker.workloads.attention.spec import AttentionExperiment, AttentionJob
from benchmarker.workloads.base import Workload
from benchmarker.workloads.session import Bench, Session

if TYPE_CHECKING:
    from benchmarker.comparison.comparing import Circumstance
    from benchmarker.comparison.rows import Row
    from benchmarker.explain.case import Timed
    from benchmarker.explain.values import NotExplained
    from benchmarker.hardware.device import Device


class Attention(Workload[AttentionJob, AttentionRecord]):
    """One call of one attention layer."""

    name = "attention"
    question = "Which attention implementation for my shapes, and is it worth replacing mine?"
    unit = "call"
    experiment = AttentionExperiment
    job = AttentionJob
    record = AttentionRecord
    axes = declared.AXES
    metrics = declared.METRICS
    headline = declared.HEADLINE
    imports = ("benchmarker.workloads.attention.attention_bench",)
    example = "--variant flash --seq-len 1024,4096 --head-dim 128"
    must_be_equal = ("layer",)
    subject_fields = ("subject",)

    def options(self) -> list[Option]:
        from benchmarker.schema.options import field_options

        return field_options(
            self.job,
            # `--dtype` is the layer's; a sweep has a `--seed` of its own.
            flags={"variant.dtype": "--variant-dtype", "subject.seed": "--input-seed"},
            helps={"subject.causal": "Every position attends to all, not only to itself and what is before it."},
        )

    def overlay(self, typed: Mapping[str, Any]) -> dict[str, Any]:
        from benchmarker.workloads.attention.check import over

        return over(typed)

    def resolve(self, variant: Any) -> Any:
        from benchmarker.workloads.attention.check import resolve

        return resolve(variant)

    def check(self, job: AttentionJob, typed: Mapping[str, Any]) -> None:
        from benchmarker.workloads.attention import check

        check.check_typed(job, typed)
        check.check(job)

    def title(self, job: AttentionJob) -> str:
        return declared.title(job)

    def matmul_dtype(self, job: AttentionJob) -> str:
        return declared.matmul_dtype(job)

    def open(self, job: AttentionJob, device: Device, session: Session) -> AbstractContextManager[Bench]:
        from benchmarker.workloads.attention.attention_bench import open_bench

        return open_bench(job, device, session)

    def key_parts(self, job: AttentionJob) -> dict[str, Any]:
        from benchmarker.workloads.attention.check import key_parts

        return key_parts(job)

    def record_fields(self, job: AttentionJob) -> dict[str, Any]:
        from benchmarker.workloads.attention.check import record_fields

        return record_fields(job)

    def inputs(self, job: AttentionJob, *, judged: bool) -> dict[str, str]:
        from benchmarker.workloads.attention.check import inputs

        return inputs(job, judged=judged)

    def form(self, record: AttentionRecord) -> dict[str, str]:
        return {"implementation": record.variant.variant, "dtype": record.variant.dtype}

    def plainness(self, record: AttentionRecord) -> tuple[bool, ...]:
        return (record.variant.variant == declared.PLAIN,)

    def circumstances(self) -> Mapping[str, Circumstance]:
        return {"layer": _layer}

    def timed(self, name: str, records: Sequence[AttentionRecord]) -> Timed | NotExplained:
        from benchmarker.workloads.attention.reading.reasons import timed_call

        return timed_call(name, records)

    def remarks(self, rows: Sequence[Row], baseline: str | None) -> Sequence[str]:
        from benchmarker.workloads.attention.reading.lengths import over_lengths

        return over_lengths(rows, baseline)


def _layer(record: AttentionRecord) -> str:
    """The subject without its dtype, which a variant may replace."""
    values = record.subject.model_dump(mode="json", exclude={"dtype"}, exclude_none=True)
    return ", ".join(f"{name} {value}" for name, value in values.items())


WORKLOAD = Attention()
