"""The axes and metrics of token mixers, and their jobs in words."""

from __future__ import annotations

from collections.abc import Callable

from benchmarker.schema.workload import Axis, Metric
from benchmarker.workloads.attention.record import AttentionMemory, AttentionSample
from benchmarker.workloads.mixers.record import MixersCell, MixersRecord
from benchmarker.workloads.mixers.spec import MixersJob

MIB = 2.0**20


def mode_words(mode: str) -> str:
    """`forward + backward`, `training step`."""
    return mode.replace("_", " " if mode == "training_step" else " + ")


AXES = (
    Axis("seq_len", "S", lambda length: f"{length:,} positions"),
    Axis("batch_size", "batch", lambda sequences: f"batch of {sequences}"),
    Axis("mode", "mode", mode_words, is_size=False),
)


def tokens_per_s(cell: MixersCell, latency_s: float) -> float | None:
    """Positions of the whole batch that go through the layer in a second."""
    return cell.batch_size * cell.seq_len / latency_s


def flops_per_s(cell: MixersCell, latency_s: float) -> float | None:
    """Operations per second, those of the formula."""
    return cell.demand.flops / latency_s if cell.demand else None


def forward_s(cell: MixersCell, sample: AttentionSample) -> float | None:
    """Seconds of the forward pass of one call."""
    return sample.latency_s if cell.mode == "forward" else sample.parts_s.get("forward")


def backward_s(cell: MixersCell, sample: AttentionSample) -> float | None:  # noqa: ARG001
    """Seconds of the backward pass of one call; None where it has none."""
    return sample.parts_s.get("backward")


def _passes(read: Callable[[AttentionMemory], int | None]) -> Callable[[MixersRecord, MixersCell], float | None]:
    """A size from the memory of both passes."""

    def of_cell(record: MixersRecord, cell: MixersCell) -> float | None:  # noqa: ARG001
        return read(cell.passes) if cell.passes else None

    return of_cell


def _peak(memory: AttentionMemory) -> int | None:
    return max((size for size in (memory.forward_peak_bytes, memory.backward_peak_bytes) if size), default=None)


METRICS = (
    Metric(
        name="tokens",
        heading="Mtok/s",
        unit="1/s",
        scale=1e-6,
        better="higher",
        formula="batch * positions, divided by the seconds of one call",
        of_latency=tokens_per_s,
    ),
    Metric(
        name="forward",
        heading="forward ms",
        unit="s",
        scale=1e3,
        better="lower",
        formula="seconds of one forward pass, the mean of calls in a row",
        of_sample=forward_s,
    ),
    Metric(
        name="backward",
        heading="backward ms",
        unit="s",
        scale=1e3,
        better="lower",
        formula="seconds by which forward and backward take longer than forward alone",
        of_sample=backward_s,
    ),
    Metric(
        name="tflops",
        heading="TFLOP/s",
        unit="FLOP/s",
        scale=1e-12,
        better="higher",
        formula="4 (delta rule 6) * heads * head_dim * value_dim a token, softmax 2 * heads * (head_dim + value_dim) a "
        "pair, 3 times that (softmax 3.5) with the backward pass, divided by the seconds of one call",
        of_latency=flops_per_s,
    ),
    Metric(
        name="peak",
        heading="call's peak MiB",
        unit="B",
        scale=1 / MIB,
        better="lower",
        formula="most bytes of live tensors beside the inputs, in one untimed call",
        of_cell=_passes(_peak),
        combine="max",
    ),
    Metric(
        name="kept",
        heading="kept MiB",
        unit="B",
        scale=1 / MIB,
        better="lower",
        formula="bytes that the forward pass keeps for the backward pass, its output included",
        of_cell=_passes(lambda memory: memory.kept_bytes),
        combine="max",
    ),
    Metric(
        name="state",
        heading="state kfloat",
        unit="",
        scale=1e-3,
        better="lower",
        formula="numbers that one sequence carries through the layer: heads * head_dim * value_dim; softmax's grow "
        "with the positions, heads * (head_dim + value_dim) each",
        of_cell=lambda record, cell: cell.demand.state_floats if cell.demand else None,
    ),
    Metric(
        name="parameters",
        heading="parameters M",
        unit="",
        scale=1e-6,
        better="lower",
        formula="of the whole model whose training step is timed, embeddings and head included",
        of_cell=lambda record, cell: cell.block.parameters if cell.block else None,
    ),
    Metric(
        name="error",
        heading="error ppm",
        unit="",
        scale=1e6,
        better="lower",
        formula="largest distance of a result from float64, by Frobenius norms, relative to its size",
        of_cell=lambda record, cell: cell.checked.error if cell.checked else None,
        combine="max",
    ),
)
HEADLINE = "tokens"


def title(job: MixersJob) -> str:
    """`mixers of 16 heads of 128`: what is measured, for the first line and the folder."""
    subject = job.subject
    values = f" with values of {subject.value_dim}" if subject.value_dim not in (None, subject.head_dim) else ""
    return f"mixers of {subject.heads} heads of {subject.head_dim}{values}"
