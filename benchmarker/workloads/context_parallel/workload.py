"""The workload context_parallel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import SpecError
from benchmarker.schema.registry import Axis
from benchmarker.workloads.context_parallel.context_parallel_metrics import METRICS
from benchmarker.workloads.context_parallel.record import ContextParallelRecord
from benchmarker.workloads.context_parallel.spec import (
    ContextParallelExperiment,
    ContextParallelJob,
    ContextParallelPoint,
)
from benchmarker.workloads.context_parallel.splittings import check_devices, gpus_of, splitting_of, wrong_shape
from benchmarker.workloads.operation.operation_metrics import MODE_AXIS, SEQ_LEN_AXIS
from benchmarker.workloads.operation.operation_workload import OperationWorkload
from benchmarker.workloads.session import Bench, Session

if TYPE_CHECKING:
    from benchmarker.comparison.invariants import Check
    from benchmarker.comparison.rows import Circumstance, Row
    from benchmarker.core.tables import Column
    from benchmarker.explain.values import NotExplained
    from benchmarker.explain.waterfall import Timed
    from benchmarker.hardware.device import Device


class ContextParallel(OperationWorkload[ContextParallelJob, ContextParallelRecord]):
    """One attention call over a sequence that is split over several GPUs."""

    name = "context_parallel"
    experiment = ContextParallelExperiment
    job = ContextParallelJob
    record = ContextParallelRecord
    axes = (Axis("ranks", "ranks", lambda ranks: f"{ranks} ranks", is_size=False), SEQ_LEN_AXIS, MODE_AXIS)
    metrics = METRICS
    headline = "tflops"
    imports = ("benchmarker.workloads.context_parallel.context_parallel_bench",)
    example = "--variant zigzag --ranks 2 --seq-len 8192,65536"
    baseline_noun = "single rank"
    speed_axis = "TFLOP/s of all GPUs"

    def registered(self, name: str) -> object:
        return splitting_of(name)

    def check(self, job: ContextParallelJob, typed: Mapping[str, Any]) -> None:
        super().check(job, typed)
        for point in job.grid.points():
            if problem := wrong_shape(job.variant.variant, job.variant.kernel, job.subject, point):
                raise SpecError(problem)

    def open(self, job: ContextParallelJob, device: Device, session: Session) -> AbstractContextManager[Bench]:
        from benchmarker.workloads.context_parallel.context_parallel_bench import open_bench

        return open_bench(job, device, session)

    def variant_facts(self, job: ContextParallelJob) -> dict[str, Any]:
        return {"kernel": job.variant.kernel}

    def look_for(self, job: ContextParallelJob) -> str | None:
        check_devices(job.device, job.gpus)
        return None

    def cell_fields(
        self,
        job: ContextParallelJob,
        point: ContextParallelPoint,
        records: Sequence[ContextParallelRecord],  # noqa: ARG002
    ) -> dict[str, Any]:
        return {**point._asdict(), "gpus": gpus_of(job.variant.variant, point.ranks)}

    def circumstances(self, records: Sequence[Any]) -> Mapping[str, Circumstance]:  # noqa: ARG002
        return {"layer": self.layer_text, "exchange": _exchange_text}

    def checks(self, record: ContextParallelRecord) -> Iterable[Check]:
        """Check that the slowest rank's time is the latency, and that the sent bytes follow the formula."""
        from benchmarker.comparison.invariants import equal

        for number, cell in enumerate(record.cells):
            name = f"cell {number}"
            if cell.sent_bytes is not None and cell.demand:
                yield equal(name, "sent_bytes", cell.sent_bytes, cell.demand.sent_bytes)
            for sample in (*cell.warmup, *cell.samples):
                yield equal(name, "latency_s", sample.latency_s, max(sample.ranks_s, default=sample.latency_s))

    def timed(self, name: str, records: Sequence[ContextParallelRecord]) -> Timed | NotExplained:
        from benchmarker.workloads.context_parallel.context_parallel_reading import timed_rank

        return timed_rank(name, records)

    def brief_columns(self, rows: Sequence[Row]) -> tuple[Sequence[Column[Any]], Sequence[Column[Any]]]:
        from benchmarker.report.columns import quality_columns
        from benchmarker.workloads.context_parallel.context_parallel_reading import brief_columns

        return brief_columns(rows), quality_columns(rows)

    def remarks(self, rows: Sequence[Row], baseline: str | None, *, brief: bool = False) -> Sequence[str]:  # noqa: ARG002
        from benchmarker.workloads.context_parallel.context_parallel_reading import hiding_remarks, remarks

        return hiding_remarks(rows) if brief else remarks(rows)


def _exchange_text(record: ContextParallelRecord) -> str | None:
    return f"{record.built.backend} {record.built.collectives or ''}".strip() if record.built else None


WORKLOAD = ContextParallel()
