"""Axes, metrics and methods that attention, mixers and context_parallel share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarker.comparison.rows import Circumstance
from benchmarker.core.errors import FieldError, SpecError
from benchmarker.schema.options import Option, field_options
from benchmarker.schema.record import RunRecord, median_latency_s
from benchmarker.schema.registry import Axis, Metric, metric
from benchmarker.workloads.base import JobT, RecordT, RowT, Workload
from benchmarker.workloads.operation.record import LengthCell, OperationCell
from benchmarker.workloads.operation.spec import mode_text

SEED_FLAG = {"subject.seed": "--input-seed"}  # The option `--seed` is the seed of a sweep.
SEQ_LEN_AXIS = Axis("seq_len", "S", lambda length: f"{length:,} positions")
MODE_AXIS = Axis("mode", "mode", mode_text, is_size=False)
LENGTH_AXES = (SEQ_LEN_AXIS, Axis("batch_size", "batch", lambda sequences: f"batch of {sequences}"), MODE_AXIS)


def flops_per_s(cell: OperationCell, latency_s: float) -> float | None:
    return cell.demand.flops / latency_s if cell.demand else None


def tflops_metric(formula: str, *, of_latency: Callable[[Any, float], float | None] = flops_per_s) -> Metric:
    return metric("tflops", "TFLOP/s", formula, better="higher", of_latency=of_latency)


def fact_metric(name: str, heading: str, of_cell: Callable[[Any], float | None], formula: str, **values: Any) -> Metric:
    return metric(name, heading, formula, of_cell=lambda record, cell: of_cell(cell), **values)


def share_metric(
    name: str, heading: str, formula: str, *, flops_of: Callable[[Any], int] = lambda demand: demand.flops
) -> Metric:
    """Return a metric: FLOPs per second divided by the matmul rate that the same process measured."""

    def of_cell(record: RunRecord, cell: Any) -> float | None:
        if not record.limits or not cell.demand or not cell.samples:
            return None
        return flops_of(cell.demand) / median_latency_s(cell) / record.limits.matmul_flops_per_s

    return metric(name, heading, formula, better="higher", of_cell=of_cell)


def _peak_bytes(cell: LengthCell) -> int | None:
    memory = cell.passes
    peaks = (memory.forward_peak_bytes, memory.backward_peak_bytes) if memory else ()
    return max(filter(None, peaks), default=None)


FORWARD = metric(
    "forward",
    "forward ms",
    "seconds of one forward pass, the mean of calls in a row",
    of_sample=lambda cell, sample: sample.latency_s if cell.mode == "forward" else sample.parts_s.get("forward"),
)
BACKWARD = metric(
    "backward",
    "backward ms",
    "seconds by which forward and backward take longer than forward alone",
    of_sample=lambda cell, sample: sample.parts_s.get("backward"),
)
PEAK = fact_metric(
    "peak",
    "call's peak MiB",
    _peak_bytes,
    "peak of live tensors in one untimed call, without the inputs",
    combine="max",
)
KEPT = fact_metric(
    "kept",
    "kept MiB",
    lambda cell: cell.passes.kept_bytes if cell.passes else None,
    "bytes that the forward pass keeps for the backward pass, its output included",
    combine="max",
)
ERROR = fact_metric(
    "error",
    "error ppm",
    lambda cell: cell.checked.error if cell.checked else None,
    "largest distance of a result from float64, by Frobenius norms, relative to its size",
    combine="max",
    is_quality=True,
)


class OperationWorkload(Workload[JobT, RecordT, RowT]):
    unit = "call"
    must_be_equal = ("layer",)
    subject_fields = ("subject",)
    replaceable_fields: frozenset[str] = frozenset()
    """Fields of the subject that a variant may replace."""

    def options(self) -> list[Option]:
        return field_options(self.job, flags=SEED_FLAG)

    def overlay(self, typed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the typed values. A typed batch size clears the config's `tokens`; typed tokens, its `batch_size`."""
        if typed.get("grid.tokens"):
            return {"grid.batch_size": [1], **typed}
        return {**typed, "grid.tokens": []} if typed.get("grid.batch_size") else dict(typed)

    def registered(self, name: str) -> object:
        raise NotImplementedError

    def resolve(self, variant: Any, subject: Any = None) -> Any:  # noqa: ARG002
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
