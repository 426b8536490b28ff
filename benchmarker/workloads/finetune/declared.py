"""The axes and metrics of fine-tuning, and its jobs in words."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from benchmarker.core.formatting import GIB
from benchmarker.schema.job import Job
from benchmarker.schema.metric import Axis, Metric
from benchmarker.workloads.finetune.record import FinetuneCell, FinetuneFacts, FinetuneRecord
from benchmarker.workloads.finetune.spec import FinetuneJob, FinetunePoint
from benchmarker.workloads.training.record import StepPart, TrainingSample

AXES = (
    Axis("seq_len", "S", lambda length: f"{length:,} tokens"),
    Axis("batch_size", "batch", lambda sequences: f"batch of {sequences}"),
    Axis(
        "accumulate",
        "micro-batches",
        lambda count: f"{count} micro-batch{'es' if count > 1 else ''}",
        # The next micro-batch takes the place of the one before.
        is_size=False,
    ),
)


def tokens_per_s(cell: FinetuneCell, latency_s: float) -> float:
    """Tokens of one step over its seconds."""
    return cell.batch_size * cell.seq_len * cell.accumulate / latency_s


def _share(
    flops: Callable[[FinetuneCell], int | None],
) -> Callable[[FinetuneRecord, FinetuneCell], float | None]:
    """Of the matmul rate that was measured in the same process."""

    def of_cell(record: FinetuneRecord, cell: FinetuneCell) -> float | None:
        work = flops(cell)
        if not record.limits or work is None or not cell.samples:
            return None
        # As in any table, the median of a process counts.
        latency_s = median([sample.latency_s for sample in cell.samples])
        return work / latency_s / record.limits.matmul_flops_per_s

    return of_cell


def _all_flops(cell: FinetuneCell) -> int | None:
    return cell.demand.flops + cell.demand.recompute_flops if cell.demand else None


def _part(name: StepPart) -> Callable[[FinetuneCell, TrainingSample], float | None]:
    def of_sample(cell: FinetuneCell, sample: TrainingSample) -> float | None:  # noqa: ARG001
        return sample.drained_parts_s.get(name)

    return of_sample


def _frozen_bytes(facts: FinetuneFacts) -> int | None:
    """None where every weight is trained: what is left are a few bytes of constants."""
    return facts.weight_bytes if facts.frozen_linear_weights else None


def _built(read: Callable[[FinetuneFacts], int | None]) -> Callable[[FinetuneRecord, FinetuneCell], float | None]:
    def of_cell(record: FinetuneRecord, cell: FinetuneCell) -> float | None:  # noqa: ARG001
        return read(record.built) if record.built else None

    return of_cell


def activations(record: FinetuneRecord, cell: FinetuneCell) -> float | None:  # noqa: ARG001
    """Bytes that the forward pass leaves for the backward pass; None on CPU."""
    return cell.step_memory.kept_bytes if cell.step_memory else None


METRICS = (
    Metric(
        name="tokens",
        heading="tok/s",
        unit="1/s",
        scale=1.0,
        better="higher",
        formula="batch_size * seq_len * accumulate divided by the seconds of one undivided step",
        of_latency=tokens_per_s,
    ),
    Metric(
        name="mfu",
        heading="MFU %",
        unit="",
        scale=100.0,
        better="higher",
        formula="tokens * (4 * frozen + 6 * trained linear weights) + 3.5 * attention's forward pass, divided by the "
        "seconds of a step and by the matmul rate that was measured in the same process",
        of_cell=_share(lambda cell: cell.demand.flops if cell.demand else None),
    ),
    Metric(
        name="hfu",
        heading="HFU %",
        unit="",
        scale=100.0,
        better="higher",
        formula="the same with what gradient checkpointing computes again: tokens * 2 * linear weights of the "
        "checkpointed layers, and attention's forward pass once more",
        of_cell=_share(_all_flops),
    ),
    Metric(
        name="forward",
        heading="forward ms",
        unit="s",
        scale=1e3,
        better="lower",
        formula="seconds of the forward passes of a step whose parts are each ended by a wait for the device",
        of_sample=_part("forward"),
    ),
    Metric(
        name="backward",
        heading="backward ms",
        unit="s",
        scale=1e3,
        better="lower",
        formula="seconds of the backward passes of the same step, recomputing included",
        of_sample=_part("backward"),
    ),
    Metric(
        name="optimizer",
        heading="optimizer ms",
        unit="s",
        scale=1e3,
        better="lower",
        formula="seconds of the optimizer in the same step",
        of_sample=_part("optimizer"),
    ),
    Metric(
        name="weights",
        heading="weights GiB",
        unit="B",
        scale=1 / GIB,
        better="lower",
        formula="bytes of all that is not trained: unique storages, scales of quantized weights included; none where "
        "every weight is trained",
        of_cell=_built(_frozen_bytes),
        combine="max",
    ),
    Metric(
        name="trained",
        heading="trained GiB",
        unit="B",
        scale=1 / GIB,
        better="lower",
        formula="bytes of trained weights, of their gradients and of the optimizer's state",
        of_cell=_built(lambda facts: facts.trained_bytes),
        combine="max",
    ),
    Metric(
        name="activations",
        heading="activations GiB",
        unit="B",
        scale=1 / GIB,
        better="lower",
        formula="live bytes after the forward pass less those before it, in one untimed step",
        of_cell=activations,
        combine="max",
    ),
)
HEADLINE = "tokens"


def title(job: Job) -> str:
    """`fine-tuning Qwen/Qwen3-4B`: what is measured, for the first line and the folder."""
    assert isinstance(job, FinetuneJob)
    return f"fine-tuning {job.model.id}"


def matmul_dtype(job: Job) -> str:
    """Type in which the matmul rate is measured."""
    assert isinstance(job, FinetuneJob)
    return job.model.dtype


def guess_s(point: FinetunePoint) -> float:
    """First guess of one repeat's seconds, which are two steps: of a 4B model on a fast GPU."""
    return 2 * point.batch_size * point.seq_len * point.accumulate / 10_000
