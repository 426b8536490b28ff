"""Context parallel attention as a workload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from benchmarker.schema.option import Option
from benchmarker.workloads.base import Workload
from benchmarker.workloads.context_parallel import declared
from benchmarker.workloads.context_parallel.record import ContextParallelRecord
from benchmarker.workloads.context_parallel.spec import (
    ContextParallelExperiment,
    ContextParallelJob,
    ContextParallelPoint,
)
from benchmarker.workloads.session import Bench, Session

if TYPE_CHECKING:
    from benchmarker.comparison.comparing import Circumstance
    from benchmarker.comparison.invariants import Check
    from benchmarker.comparison.rows import Row
    from benchmarker.core.tables import Column
    from benchmarker.explain.case import Timed
    from benchmarker.explain.values import NotExplained
    from benchmarker.hardware.device import Device

PLAIN = "single"


class ContextParallel(Workload[ContextParallelJob, ContextParallelRecord]):
    """One attention call over a sequence that is split over several GPUs."""

    name = "context_parallel"
    question = "How do I split a long context over my GPUs, and from which length does it cost nothing?"
    unit = "call"
    experiment = ContextParallelExperiment
    job = ContextParallelJob
    record = ContextParallelRecord
    axes = declared.AXES
    metrics = declared.METRICS
    headline = declared.HEADLINE
    imports = ("benchmarker.workloads.context_parallel.context_parallel_bench",)
    example = "--variant zigzag --ranks 2 --seq-len 8192,65536"
    must_be_equal = ("layer",)
    subject_fields = ("subject",)
    baseline_noun = "single rank"
    speed_axis = "TFLOP/s of all GPUs"

    def options(self) -> list[Option]:
        from benchmarker.schema.options import field_options

        # A sweep has a `--seed` of its own.
        return field_options(self.job, flags={"subject.seed": "--input-seed"})

    def resolve(self, variant: Any) -> Any:
        from benchmarker.workloads.context_parallel.check import resolve

        return resolve(variant)

    def check(self, job: ContextParallelJob, typed: Mapping[str, Any]) -> None:
        from benchmarker.workloads.context_parallel import check

        check.check_typed(job, typed)
        check.check(job)

    def title(self, job: ContextParallelJob) -> str:
        return declared.title(job)

    def matmul_dtype(self, job: ContextParallelJob) -> str:
        return declared.matmul_dtype(job)

    def open(self, job: ContextParallelJob, device: Device, session: Session) -> AbstractContextManager[Bench]:
        from benchmarker.workloads.context_parallel.context_parallel_bench import open_bench

        return open_bench(job, device, session)

    def record_fields(self, job: ContextParallelJob) -> dict[str, Any]:
        from benchmarker.workloads.context_parallel.check import record_fields

        return record_fields(job)

    def look_for(self, job: ContextParallelJob) -> str | None:
        from benchmarker.workloads.context_parallel.check import look_for

        return look_for(job)

    def cell_fields(
        self, job: ContextParallelJob, point: ContextParallelPoint, records: Sequence[ContextParallelRecord]
    ) -> dict[str, Any] | None:
        return declared.cell_fields(job, point, records)

    def form(self, record: ContextParallelRecord) -> dict[str, str]:
        return {"split": record.variant.variant, "kernel": record.variant.kernel}

    def family(self, record: ContextParallelRecord) -> str:
        return record.variant.variant

    def plainness(self, record: ContextParallelRecord) -> tuple[bool, ...]:
        return (record.variant.variant == PLAIN,)

    def circumstances(self) -> Mapping[str, Circumstance]:
        return {"layer": _layer, "exchange": _exchange}

    def checks(self, record: ContextParallelRecord) -> Iterable[Check]:
        """Check that the slowest rank's time counts, and that the sent bytes follow the formula."""
        from benchmarker.comparison.invariants import equal

        for number, cell in enumerate(record.cells):
            place = f"cell {number}"
            if cell.sent_bytes is not None and cell.demand:
                yield equal(place, "sent_bytes", cell.sent_bytes, cell.demand.sent_bytes)
            for sample in (*cell.warmup, *cell.samples):
                yield equal(place, "latency_s", sample.latency_s, max(sample.ranks_s, default=sample.latency_s))

    def timed(self, name: str, records: Sequence[ContextParallelRecord]) -> Timed | NotExplained:
        from benchmarker.workloads.context_parallel.reading.reasons import timed_call

        return timed_call(name, records)

    def brief_columns(self, rows: Sequence[Row]) -> Sequence[Column[Any]]:
        from benchmarker.workloads.context_parallel.reading.brief import brief_columns

        return brief_columns(rows)

    def remarks(self, rows: Sequence[Row], baseline: str | None) -> Sequence[str]:
        from benchmarker.workloads.context_parallel.reading.remarks import remarks

        return remarks(rows, baseline)

    def first_remarks(self, rows: Sequence[Row]) -> Sequence[str]:
        from benchmarker.workloads.context_parallel.reading.remarks import hiding

        return hiding(rows)


def _layer(record: ContextParallelRecord) -> str:
    """The layer's shapes and type."""
    values = record.subject.model_dump(mode="json", exclude_none=True)
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _exchange(record: ContextParallelRecord) -> str | None:
    """`nccl 2.28.9`, `gloo`."""
    return f"{record.built.backend} {record.built.collectives or ''}".strip() if record.built else None


WORKLOAD = ContextParallel()
