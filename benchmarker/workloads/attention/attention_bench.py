"""Measurement of one attention implementation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import WrongResultError
from benchmarker.workloads.attention.attention_flops import demand_of
from benchmarker.workloads.attention.attention_reference import check, input_bytes, inputs_sha256, make_inputs, wrong
from benchmarker.workloads.attention.attention_variants import (
    AttentionImplementation,
    implementation_of,
    source_sha256,
    variants_with_kernel,
)
from benchmarker.workloads.attention.record import AttentionCell, AttentionChecked, AttentionFacts
from benchmarker.workloads.attention.spec import (
    AttentionJob,
    AttentionShape,
    AttentionSubject,
    AttentionVariant,
    shape_of,
)
from benchmarker.workloads.operation.operation_bench import (
    MatmulPrecision,
    OperationBench,
    ReadyCall,
    measured_limits,
)
from benchmarker.workloads.operation.operation_call import CallInputs, copies_needed, fresh_results
from benchmarker.workloads.operation.record import SeenKernel
from benchmarker.workloads.operation.spec import LengthPoint
from benchmarker.workloads.session import Session

if TYPE_CHECKING:
    from benchmarker.hardware.device import Device


class AttentionBench(OperationBench[AttentionImplementation]):
    def __init__(
        self,
        subject: AttentionSubject,
        variant: AttentionVariant,
        device: Device,
        *,
        precision: MatmulPrecision | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        super().__init__(implementation_of(variant.variant), device, cache_bytes=cache_bytes)
        self._subject = subject
        self._variant = variant
        self._precision = precision

    def facts(self) -> Mapping[str, Any]:
        precision = None if self.device.kind == "cpu" else self._precision
        source = source_sha256(self._variant.variant)
        return {"built": AttentionFacts(matmul_precision=precision, source_sha256=source)}

    def shape(self, point: LengthPoint) -> AttentionShape:
        return shape_of(self._subject, self._variant, point)

    def cell(self, point: LengthPoint) -> AttentionCell:
        self._ready = None
        shape = self.shape(point)
        digest = inputs_sha256(shape, self.device.torch_name, seed=self._subject.seed)
        return AttentionCell(status="ok", **point._asdict(), demand=demand_of(shape), inputs_sha256=digest)

    def copies(self, point: LengthPoint) -> list[CallInputs]:
        shape = self.shape(point)
        first = make_inputs(shape, self.device.torch_name, seed=self._subject.seed)
        count = copies_needed(input_bytes(shape), self.cache_bytes, kind=self.device.kind)
        return [first, *(first.shifted(positions) for positions in range(1, count))]

    def checked(self, ready: ReadyCall) -> AttentionChecked:
        first, seed = ready.copies[0], self._subject.seed + 1
        results = fresh_results(
            ready.operation, first, lambda: make_inputs(ready.shape, self.device.torch_name, seed=seed)
        )
        checked = check(results, first, ready.shape)
        if problem := wrong(checked):
            raise WrongResultError(problem)
        return checked

    def name_kernels(self, kernels: tuple[SeenKernel, ...]) -> str:
        return " and ".join(variants_with_kernel(kernels, self.device.kind)) or super().name_kernels(kernels)


@contextmanager
def open_bench(job: AttentionJob, device: Device, session: Session) -> Iterator[AttentionBench]:
    """Open the bench of a job. The device's limits are measured with the job's precision of float32 products."""
    with measured_limits(session, job.dtype) as (cache_bytes, precision):
        yield AttentionBench(job.subject, job.variant, device, precision=precision, cache_bytes=cache_bytes)
