"""Tasks in a sweep: which variants share a training, whether a record has it, and what is kept of it."""

from __future__ import annotations

from typing import Any

from benchmarker.schema.record import Missing
from benchmarker.workloads.mixers.record import MixersRecord
from benchmarker.workloads.mixers.spec import MixersJob
from benchmarker.workloads.session import Judging


class MixersJudging(Judging[MixersJob, MixersRecord]):
    """Models trained on tasks, once for each implementation and seed."""

    name = "tasks"

    def form(self, job: MixersJob) -> str | None:
        """Variants of one implementation are one."""
        return job.variant.variant if job.subject.tasks.names else None

    def words(self, job: MixersJob) -> str:
        """`mqar, copy; 3 seeds of 500 steps`."""
        tasks = job.subject.tasks
        return f"{', '.join(tasks.names)}; {tasks.seeds} seeds of {tasks.steps} steps"

    def is_done(self, record: MixersRecord, job: MixersJob) -> bool:  # noqa: ARG002
        """Whether a record has them: another subject is another sweep."""
        return bool(record.tasks) or record.no_tasks is not None

    def changes(self, job: MixersJob, judged: MixersRecord | None, reason: Missing | None) -> dict[str, Any]:
        """Fields of the records: the scores, or why there are none."""
        if judged and judged.tasks:
            return {"tasks": judged.tasks, "no_tasks": judged.no_tasks}
        return {"no_tasks": (judged and judged.no_tasks) or reason} if job.subject.tasks.names else {}

    def missing(self, record: MixersRecord) -> Missing | None:
        """Why something is not there that was asked for."""
        return record.no_tasks

    def lost(self, job: MixersJob, judged: MixersRecord | None) -> str:  # noqa: ARG002
        """What a process that failed was to measure."""
        return "tasks"
