"""What a workload measures apart from time, as a sweep asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from benchmarker.schema.record import Missing


class Judging(Protocol):
    """What a workload measures apart from time: once for each form, in a process of its own, after everything that is
    timed. The jobs and records are its own."""

    name: str
    """`quality`."""

    def check(self, job: Any) -> None:
        """Refuse what cannot be measured, before anything is timed. Raises BenchmarkerError."""

    def form(self, job: Any) -> str | None:
        """Jobs with the same text share one measurement. None where nothing is asked."""

    def words(self, job: Any) -> str:
        """What is asked, for the plan."""

    def is_done(self, record: Any, job: Any) -> bool:
        """Whether all that is asked is in the record, measured as it is asked."""

    def changes(self, job: Any, judged: Any, reason: Missing | None) -> dict[str, Any]:
        """Fields of the records, from that of the process that measured (None if there is none) and why it failed."""

    def missing(self, record: Any) -> Missing | None:
        """Why something is not there that was asked for."""

    def lost(self, job: Any, judged: Any) -> str:
        """What a process that failed was to measure and did not."""
