"""The axes and metrics of token mixers, and their jobs in words."""

from __future__ import annotations

from benchmarker.schema.metric import Axis, Metric
from benchmarker.workloads.attention.declared import BACKWARD, FORWARD, KEPT, PEAK, flops_per_s
from benchmarker.workloads.mixers.record import MixersCell
from benchmarker.workloads.mixers.spec import MixersJob


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
    FORWARD,
    BACKWARD,
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
    PEAK,
    KEPT,
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
