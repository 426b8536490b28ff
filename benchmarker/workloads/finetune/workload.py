"""Fine-tuning as a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from benchmarker.schema.option import Option
from benchmarker.workloads.base import Workload
from benchmarker.workloads.finetune import declared
from benchmarker.workloads.finetune.record import FinetuneRecord
from benchmarker.workloads.finetune.spec import FinetuneExperiment, FinetuneJob, FinetunePoint
from benchmarker.workloads.session import Bench, Session

if TYPE_CHECKING:
    from benchmarker.comparison.comparing import Circumstance
    from benchmarker.explain.case import Timed
    from benchmarker.explain.values import NotExplained
    from benchmarker.hardware.device import Device

PLAIN = "lora"


class Finetune(Workload[FinetuneJob, FinetuneRecord]):
    """One training step of a whole model."""

    name = "finetune"
    question = "Full, LoRA or QLoRA, with which switches: what fits, how fast, and where does a step's time go?"
    unit = "step"
    experiment = FinetuneExperiment
    job = FinetuneJob
    record = FinetuneRecord
    axes = declared.AXES
    metrics = declared.METRICS
    headline = declared.HEADLINE
    imports = ("benchmarker.workloads.finetune.finetune_bench", "transformers.models.auto.modeling_auto")
    example = "--variant qlora --model qwen3-small --seq-len 512"
    must_be_equal = ("model", "model shapes (config_sha256)", "load_format")
    subject_fields = ("model",)

    def options(self) -> list[Option]:
        from benchmarker.schema.options import field_options

        return field_options(
            self.job,
            # A sweep has a `--seed` of its own.
            flags={"subject.model.id": "--model", "subject.seed": "--input-seed"},
            panels={
                "subject.model": "Model",
                "subject": "Subject",
                "variant": "Variant",
                "grid": "Grid",
                "procedure": "Procedure",
            },
        )

    def check(self, job: FinetuneJob, typed: Mapping[str, Any]) -> None:
        from benchmarker.workloads.finetune import check

        check.check_typed(job, typed)
        check.check(job)

    def title(self, job: FinetuneJob) -> str:
        return declared.title(job)

    def repeat_s(self, point: FinetunePoint) -> float:
        return declared.guess_s(point)

    def matmul_dtype(self, job: FinetuneJob) -> str:
        return declared.matmul_dtype(job)

    def open(self, job: FinetuneJob, device: Device, session: Session) -> AbstractContextManager[Bench]:
        from benchmarker.workloads.finetune.finetune_bench import open_bench

        return open_bench(job, device, session)

    def key_parts(self, job: FinetuneJob) -> dict[str, Any]:
        from benchmarker.workloads.finetune.check import key_parts

        return key_parts(job)

    def record_fields(self, job: FinetuneJob) -> dict[str, Any]:
        from benchmarker.workloads.finetune.check import record_fields

        return record_fields(job)

    def inputs(self, job: FinetuneJob, *, judged: bool) -> dict[str, str]:
        from benchmarker.workloads.finetune.check import inputs

        return inputs(job, judged=judged)

    def is_same_subject(self, first: FinetuneJob, second: FinetuneJob) -> bool:
        from benchmarker.workloads.finetune.check import same_model

        return same_model(first, second)

    def look_for(self, job: FinetuneJob) -> str | None:
        from benchmarker.workloads.finetune.check import look_for_model

        return look_for_model(job)

    def form(self, record: FinetuneRecord) -> dict[str, str]:
        variant = record.variant
        return {
            "base": variant.base,
            "train": variant.train,
            "checkpointing": variant.checkpointing,
            "prepare": variant.prepare,
            "optimizer": variant.optimizer,
            "attention": variant.attention,
            "adapters": f"rank {variant.rank}, {variant.targets}" if variant.rank else "none",
        }

    def family(self, record: FinetuneRecord) -> str:
        return record.variant.variant

    def plainness(self, record: FinetuneRecord) -> tuple[bool, ...]:
        return (record.variant.variant == PLAIN,)

    def circumstances(self) -> Mapping[str, Circumstance]:
        return {
            "model": lambda record: record.model.id,
            "model revision": lambda record: record.model.revision,
            "model shapes (config_sha256)": lambda record: (record.model.config_sha256 or "")[:12] or None,
            "load_format": lambda record: record.model.load_format,
        }

    def knows(self, record: FinetuneRecord) -> bool:
        return record.load is not None

    def timed(self, name: str, records: Sequence[FinetuneRecord]) -> Timed | NotExplained:
        from benchmarker.workloads.finetune.reading.reasons import timed_step

        return timed_step(name, records)


WORKLOAD = Finetune()
