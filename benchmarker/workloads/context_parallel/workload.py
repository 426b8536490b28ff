"""The workload context_parallel, and its metrics: scaling, exposed communication, imbalance, and the link."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from statistics import mean
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import SpecError
from benchmarker.core.formatting import plural
from benchmarker.schema.record import DISTURBING
from benchmarker.schema.registry import Axis, metric
from benchmarker.workloads.context_parallel import context_parallel_reading as reading
from benchmarker.workloads.context_parallel import record as records
from benchmarker.workloads.context_parallel import spec
from benchmarker.workloads.context_parallel.record import ContextParallelCell, ContextParallelRecord
from benchmarker.workloads.operation import operation_workload as operation
from benchmarker.workloads.session import Bench, Session

if TYPE_CHECKING:
    from benchmarker.comparison.invariants import Check
    from benchmarker.comparison.rows import Circumstance
    from benchmarker.hardware.device import Device


def scaling(cell: ContextParallelCell, latency_s: float) -> float | None:
    """Return FLOPs per second and GPU / (those of one GPU with seq_len / ranks positions); None if disturbed."""
    if cell.demand is None or cell.single_s is None or DISTURBING.intersection(cell.flags):
        return None
    single_flops_per_s = cell.demand.local_flops / cell.single_s
    return cell.demand.total_flops / (cell.gpus * latency_s) / single_flops_per_s


def needed_bytes_per_s(cell: ContextParallelCell) -> float | None:
    """Return the bytes per second that a ring must send to hide its exchange: bytes per block / seconds per block."""
    if cell.demand is None or cell.demand.step_bytes is None or not cell.alone_s:
        return None
    return cell.demand.step_bytes * cell.ranks / mean(cell.alone_s)


def error_ratio(cell: ContextParallelCell) -> float | None:
    if cell.checked is None:
        return None
    errors = {tensor.tensor: tensor.error for tensor in cell.checked.tensors}
    ratios = [
        errors[distance.tensor] / distance.single_error
        for distance in cell.checked.distances
        if distance.single_error and distance.tensor in errors
    ]
    return max(ratios, default=None)


METRICS = (
    operation.tflops_metric(
        "4 * batch * heads * head_dim * allowed pairs, 3.5 times that with the backward pass, divided by the seconds "
        "of one call: of all GPUs together",
        of_latency=lambda cell, latency_s: cell.demand.total_flops / latency_s if cell.demand else None,
    ),
    metric(
        "tflops_gpu",
        "TFLOP/s/GPU",
        "TFLOP/s divided by the GPUs that compute",
        better="higher",
        of_latency=operation.flops_per_s,
    ),
    operation.FORWARD,
    operation.BACKWARD,
    metric(
        "scaling",
        "scaling %",
        "FLOPs per second and GPU relative to a single GPU that has seq_len / ranks positions, measured in the same "
        "process",
        better="higher",
        of_latency=scaling,
    ),
    operation.fact_metric(
        "exposed",
        "exposed %",
        records.exposed_communication,
        "exposed communication: share of the time that leaving the exchange out saves",
    ),
    operation.fact_metric(
        "exposed_trace",
        "traced %",
        records.traced_exposed_communication,
        "by the trace: share of a call's span in which only communication ran, on the rank that computes longest; on a "
        "CPU, in which it waited for an exchange",
    ),
    operation.fact_metric(
        "hidden",
        "hidden %",
        records.hidden_communication,
        "1 - exposed time / (bytes that a rank sends / link GB/s): share of the exchange that computation hides; 0 if "
        "it costs more than the link takes",
        better="higher",
    ),
    operation.fact_metric(
        "imbalance",
        "imbalance",
        records.imbalance,
        "the slowest rank's time relative to the mean of all ranks, both without exchange",
    ),
    operation.fact_metric(
        "sent", "sent MiB", lambda cell: cell.sent_bytes, "bytes that rank 0 sends to other ranks in one call, counted"
    ),
    operation.fact_metric(
        "needed_link",
        "needed GB/s",
        needed_bytes_per_s,
        "bytes that a rank of a ring sends during one block, divided by the time of one block without exchange",
    ),
    operation.fact_metric(
        "measured_link",
        "link GB/s",
        lambda cell: cell.link_bytes_per_s,
        "bytes per second that each rank sends to the next while it receives as many: the slowest rank's best of five",
        better="higher",
    ),
    operation.fact_metric(
        "rank_peak",
        "rank peak MiB",
        lambda cell: max((peak for sample in cell.samples for peak in sample.rank_peak_bytes), default=None),
        "peak of live tensors on the fullest rank, inputs included",
        combine="max",
    ),
    operation.ERROR,
    operation.fact_metric(
        "error_ratio",
        "of single's",
        error_ratio,
        "the largest of the tensors' errors relative to the single GPU's with the same kernel",
        combine="max",
    ),
)


class ContextParallel(operation.OperationWorkload[spec.ContextParallelJob, ContextParallelRecord]):
    """One attention call over a sequence that is split among several GPUs."""

    name = "context_parallel"
    experiment = spec.ContextParallelExperiment
    job = spec.ContextParallelJob
    record = ContextParallelRecord
    axes = (
        Axis("ranks", "ranks", lambda ranks: plural(ranks, "rank", "ranks"), is_size=False),
        operation.SEQ_LEN_AXIS,
        operation.MODE_AXIS,
    )
    metrics = METRICS
    headline = "tflops"
    imports = ("benchmarker.workloads.context_parallel.context_parallel_bench",)
    example = "--variant zigzag --ranks 2 --seq-len 8192,65536"
    baseline_noun = "single rank"
    speed_axis = "TFLOP/s of all GPUs"
    registered = staticmethod(spec.splitting_of)

    def check(self, job: spec.ContextParallelJob, typed: Mapping[str, Any]) -> None:
        super().check(job, typed)
        for point in job.grid.points():
            if problem := spec.wrong_shape(job.variant, job.subject, point):
                raise SpecError(problem)

    @contextmanager
    def open(self, job: spec.ContextParallelJob, device: Device, session: Session) -> Iterator[Bench]:
        from benchmarker.workloads.context_parallel.context_parallel_bench import ContextParallelBench
        from benchmarker.workloads.operation.operation_bench import measured_limits

        with (
            measured_limits(session, job.subject.dtype) as (cache_bytes, _),
            closing(ContextParallelBench(job, device, session, cache_bytes)) as bench,
        ):
            yield bench

    def variant_facts(self, job: spec.ContextParallelJob) -> dict[str, Any]:
        return {"kernel": job.variant.kernel}

    def look_for(self, job: spec.ContextParallelJob) -> str | None:
        spec.check_devices(job.device, job.gpus)
        return None

    def cell_fields(
        self,
        job: spec.ContextParallelJob,
        point: spec.ContextParallelPoint,
        records: Sequence[ContextParallelRecord],  # noqa: ARG002
    ) -> dict[str, Any]:
        return {**point._asdict(), "gpus": spec.splitting_of(job.variant.variant).gpus(point.ranks)}

    def circumstances(self, records: Sequence[Any]) -> Mapping[str, Circumstance]:  # noqa: ARG002
        def exchange_text(record: ContextParallelRecord) -> str | None:
            return f"{record.built.backend} {record.built.collectives or ''}".strip() if record.built else None

        return {"layer": self.layer_text, "exchange": exchange_text}

    def checks(self, record: ContextParallelRecord) -> Iterable[Check]:
        """Check that the latency is the slowest rank's time, and that the sent bytes agree with the formula."""
        from benchmarker.comparison.invariants import equal

        for number, cell in enumerate(record.cells):
            name = f"cell {number}"
            if cell.sent_bytes is not None and cell.demand:
                yield equal(name, "sent_bytes", cell.sent_bytes, cell.demand.sent_bytes)
            for sample in (*cell.warmup, *cell.samples):
                yield equal(name, "latency_s", sample.latency_s, max(sample.ranks_s, default=sample.latency_s))

    timed = staticmethod(reading.timed_rank)
    brief_columns = staticmethod(reading.brief_columns)
    remarks = staticmethod(reading.remarks)


WORKLOAD = ContextParallel()
