"""The workload attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarker.core.errors import SpecError
from benchmarker.hardware.device import Device
from benchmarker.schema.options import Option, field_options
from benchmarker.workloads.attention.attention_reading import length_remarks, timed_attention
from benchmarker.workloads.attention.attention_variants import VARIANTS, implementation_of, source_sha256
from benchmarker.workloads.attention.record import AttentionRecord
from benchmarker.workloads.attention.spec import AttentionExperiment, AttentionJob, AttentionSubject
from benchmarker.workloads.operation import operation_workload as operation
from benchmarker.workloads.session import Bench, Session


class Attention(operation.OperationWorkload[AttentionJob, AttentionRecord]):
    """One call of one attention layer."""

    name = "attention"
    experiment = AttentionExperiment
    job = AttentionJob
    record = AttentionRecord
    axes = operation.LENGTH_AXES
    metrics = (
        operation.tflops_metric(
            "4 * batch * heads * head_dim * allowed pairs, 3.5 times that with the backward pass, divided by the "
            "seconds of one call"
        ),
        operation.FORWARD,
        operation.BACKWARD,
        operation.share_metric(
            "matmul",
            "of matmul %",
            "FLOPs per second relative to those of a large matrix product in the same process and type (on a CPU: of "
            "the fastest product, in that type or float32)",
        ),
        operation.PEAK,
        operation.KEPT,
        operation.ERROR,
    )
    headline = "tflops"
    imports = ("benchmarker.workloads.attention.attention_bench",)
    replaceable_fields = frozenset({"dtype"})
    example = "--variant flash --seq-len 1024,4096 --head-dim 128"
    registered = staticmethod(implementation_of)

    def options(self) -> list[Option]:
        return field_options(
            self.job,
            # `--dtype` sets the subject's dtype.
            flags={**operation.SEED_FLAG, "variant.dtype": "--variant-dtype"},
            helps={"subject.causal": "Each position attends to all positions."},
        )

    def check(self, job: AttentionJob, typed: Mapping[str, Any]) -> None:
        super().check(job, typed)
        if job.variant.variant not in VARIANTS and not job.subject.trust_code:
            raise SpecError(f"variant {job.variant.variant}: is code of your own, which is run; add --trust-code")

    @contextmanager
    def open(self, job: AttentionJob, device: Device, session: Session) -> Iterator[Bench]:
        from benchmarker.workloads.attention.attention_bench import AttentionBench
        from benchmarker.workloads.operation.operation_bench import measured_limits

        with measured_limits(session, job.dtype) as (cache_bytes, precision):
            yield AttentionBench(job.subject, job.variant, device, precision=precision, cache_bytes=cache_bytes)

    def key_parts(self, job: AttentionJob) -> dict[str, Any]:
        return {
            "subject": job.subject.model_dump(mode="json", exclude={"trust_code"}),
            "variant": job.variant.model_dump(mode="json", exclude={"name"}),
            "source_sha256": source_sha256(job.variant.variant),
        }

    def record_fields(self, job: AttentionJob) -> dict[str, Any]:
        subject = AttentionSubject(**job.subject.model_dump(exclude={"trust_code"}))
        return {**super().record_fields(job), "subject": subject}

    def variant_facts(self, job: AttentionJob) -> dict[str, Any]:
        return {"dtype": job.dtype}

    def inputs(self, job: AttentionJob, *, judged: bool) -> dict[str, str]:  # noqa: ARG002
        source = source_sha256(job.variant.variant)
        return {f"source of {job.variant.variant}": source} if source else {}

    timed = staticmethod(timed_attention)
    remarks = staticmethod(length_remarks)


WORKLOAD = Attention()
