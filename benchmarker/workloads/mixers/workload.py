"""Token mixers as a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from benchmarker.schema.option import Option
from benchmarker.workloads.base import Workload
from benchmarker.workloads.mixers import declared
from benchmarker.workloads.mixers.record import MixersRecord
from benchmarker.workloads.mixers.spec import MixersExperiment, MixersJob
from benchmarker.workloads.session import Bench, Judging, Session

if TYPE_CHECKING:
    from benchmarker.comparison.comparing import Circumstance
    from benchmarker.core.tables import Sheet
    from benchmarker.explain.case import Timed
    from benchmarker.explain.values import NotExplained
    from benchmarker.hardware.device import Device
    from benchmarker.workloads.mixers.reading.rows import MixersRow

PLAIN = "softmax"


class Mixers(Workload[MixersJob, MixersRecord, "MixersRow"]):
    """One call of one token mixer."""

    name = "mixers"
    question = "At which length does a linear mixer pay, against the best softmax, and can it recall?"
    unit = "call"
    experiment = MixersExperiment
    job = MixersJob
    record = MixersRecord
    axes = declared.AXES
    metrics = declared.METRICS
    headline = declared.HEADLINE
    imports = ("benchmarker.workloads.mixers.mixers_bench",)
    example = "--variant gdn-fla-chunk --seq-len 1024,4096 --head-dim 128"
    must_be_equal = ("layer",)
    subject_fields = ("subject",)
    speed_axis = "million tokens per second"

    def options(self) -> list[Option]:
        from benchmarker.schema.options import field_options

        return field_options(
            self.job,
            flags={
                # A sweep has a `--seed` of its own.
                "subject.seed": "--input-seed",
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

    def overlay(self, typed: Mapping[str, Any]) -> dict[str, Any]:
        from benchmarker.workloads.attention.check import over

        return over(typed)

    def resolve(self, variant: Any) -> Any:
        from benchmarker.workloads.mixers.check import resolve

        return resolve(variant)

    def check(self, job: MixersJob, typed: Mapping[str, Any]) -> None:
        from benchmarker.workloads.mixers import check

        check.check_typed(job, typed)
        check.check(job)

    def title(self, job: MixersJob) -> str:
        return declared.title(job)

    def open(self, job: MixersJob, device: Device, session: Session) -> AbstractContextManager[Bench]:
        from benchmarker.workloads.mixers.mixers_bench import open_bench

        return open_bench(job, device, session)

    def record_fields(self, job: MixersJob) -> dict[str, Any]:
        from benchmarker.workloads.mixers.check import record_fields

        return record_fields(job)

    def judging(self) -> Judging[MixersJob, MixersRecord]:
        from benchmarker.workloads.mixers.judging import MixersJudging

        return MixersJudging()

    def form(self, record: MixersRecord) -> dict[str, str]:
        return {"mixer": record.variant.mixer, "implementation": record.variant.implementation}

    def family(self, record: MixersRecord) -> str:
        return record.variant.mixer

    def plainness(self, record: MixersRecord) -> tuple[bool, ...]:
        return (record.variant.mixer == PLAIN,)

    def circumstances(self) -> Mapping[str, Circumstance]:
        return {"layer": _layer}

    def row(self, fields: dict[str, Any], records: Sequence[MixersRecord], good: Sequence[Any]) -> MixersRow:
        from benchmarker.workloads.mixers.reading.rows import MixersRow, row_fields

        return MixersRow(**fields, **row_fields(records, good))

    def timed(self, name: str, records: Sequence[MixersRecord]) -> Timed | NotExplained:
        from benchmarker.workloads.mixers.reading.reasons import timed_call

        return timed_call(name, records)

    def detail_sheets(self, rows: Sequence[MixersRow]) -> Sequence[Sheet]:
        from benchmarker.workloads.mixers.reading.tasks import task_sheets

        return task_sheets(rows)

    def remarks(self, rows: Sequence[MixersRow], baseline: str | None) -> Sequence[str]:
        from benchmarker.workloads.mixers.reading.remarks import remarks

        return remarks(rows, baseline)

    def first_remarks(self, rows: Sequence[MixersRow]) -> Sequence[str]:
        from benchmarker.workloads.mixers.reading.remarks import crossovers

        return crossovers(rows)


def _layer(record: MixersRecord) -> str:
    """The shapes, and what is done to the inputs."""
    values = record.subject.model_dump(mode="json", exclude_none=True)
    return ", ".join(f"{name} {value}" for name, value in values.items())


WORKLOAD = Mixers()
