"""The workload mixers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from benchmarker.core.errors import SpecError
from benchmarker.hardware.device import Device
from benchmarker.schema.options import Option, field_options
from benchmarker.schema.registry import metric
from benchmarker.workloads.mixers import mixers_reading as reading
from benchmarker.workloads.mixers.mixer import implementation_of
from benchmarker.workloads.mixers.record import MixersRecord
from benchmarker.workloads.mixers.spec import MixersExperiment, MixersJob, held_out_bytes
from benchmarker.workloads.operation import operation_workload as operation
from benchmarker.workloads.session import Bench, Judging, Session

METRICS = (
    metric(
        "tokens",
        "Mtok/s",
        "batch * positions, divided by the seconds of one call",
        better="higher",
        of_latency=lambda cell, latency_s: cell.batch_size * cell.seq_len / latency_s,
    ),
    operation.FORWARD,
    operation.BACKWARD,
    operation.tflops_metric(
        "4 (delta rule 6) * heads * head_dim * value_dim per token, softmax 2 * heads * (head_dim + value_dim) per "
        "pair, 3 times that (softmax 3.5) with the backward pass, divided by the seconds of one call"
    ),
    operation.PEAK,
    operation.KEPT,
    operation.fact_metric(
        "state",
        "state kfloat",
        lambda cell: cell.demand.state_floats if cell.demand else None,
        "numbers that one sequence carries through the layer: heads * head_dim * value_dim; for softmax, heads * "
        "(head_dim + value_dim) per position",
    ),
    operation.fact_metric(
        "parameters",
        "parameters M",
        lambda cell: cell.block.parameters if cell.block else None,
        "parameters of the model whose training step is timed, embeddings and head included",
    ),
    replace(operation.ERROR, is_quality=False),
)


class Mixers(operation.OperationWorkload[MixersJob, MixersRecord, reading.MixersRow]):
    """One call of one token mixer."""

    name = "mixers"
    experiment = MixersExperiment
    job = MixersJob
    record = MixersRecord
    axes = operation.LENGTH_AXES
    metrics = METRICS
    headline = "tokens"
    imports = ("benchmarker.workloads.mixers.mixers_bench",)
    example = "--variant gdn-fla-chunk --seq-len 1024,4096 --head-dim 128"
    speed_axis = "million tokens per second"
    registered = staticmethod(implementation_of)

    def options(self) -> list[Option]:
        return field_options(
            self.job,
            flags={
                **operation.SEED_FLAG,
                "subject.block.vocabulary": "--model-vocabulary",
                "subject.tasks.names": "--tasks",
                "subject.tasks.batch_size": "--task-batch-size",
                "subject.tasks.vocabulary": "--task-vocabulary",
            },
            panels={
                "subject": "Layer",
                "subject.block": "Small model",
                "subject.tasks": "Tasks",
                "variant": "Variant",
                "grid": "Grid",
                "procedure": "Procedure",
            },
        )

    def check(self, job: MixersJob, typed: Mapping[str, Any]) -> None:
        super().check(job, typed)
        tasks = job.subject.tasks
        if "bytes" in tasks.names and tasks.text_len >= held_out_bytes():
            raise SpecError(
                f"text_len: {tasks.text_len:,} bytes are more than the held-out text has; give "
                f"{held_out_bytes() - 1:,} or less"
            )

    @contextmanager
    def open(self, job: MixersJob, device: Device, session: Session) -> Iterator[Bench]:
        from benchmarker.workloads.mixers.mixers_bench import MixersBench
        from benchmarker.workloads.operation.operation_bench import measured_limits

        report = session.terminal.line if job.is_judged else None
        with measured_limits(session, job.subject.dtype) as (cache_bytes, _):
            yield MixersBench(job.subject, job.variant.variant, device, cache_bytes=cache_bytes, report=report)

    def variant_facts(self, job: MixersJob) -> dict[str, Any]:
        implementation = implementation_of(job.variant.variant)
        return {"mixer": implementation.mixer.name, "implementation": implementation.source}

    def judging(self) -> Judging[MixersJob, MixersRecord]:
        return MixersJudging()

    row = staticmethod(reading.make_mixers_row)
    timed = staticmethod(reading.timed_mixer)
    detail_sheets = staticmethod(reading.task_sheets)
    remarks = staticmethod(reading.remarks)


class MixersJudging(Judging[MixersJob, MixersRecord]):
    """Training of models on tasks, once per implementation and seed."""

    name = "tasks"

    def fields(self, job: MixersJob) -> tuple[str, ...]:
        return ("tasks",) if job.subject.tasks.names else ()

    def form(self, job: MixersJob) -> str | None:
        return job.variant.variant if job.subject.tasks.names else None

    def words(self, job: MixersJob) -> str:
        tasks = job.subject.tasks
        return f"{', '.join(tasks.names)}; {tasks.seeds} seeds of {tasks.steps} steps"

    def is_done(self, record: MixersRecord, job: MixersJob) -> bool:  # noqa: ARG002
        return bool(record.tasks) or record.no_tasks is not None


WORKLOAD = Mixers()
