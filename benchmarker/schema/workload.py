"""What a workload declares of itself, for the rooms that know none by name."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarker.schema.record import RunRecord


@dataclass(frozen=True)
class Workload:
    """The description of a workload: light, so that reading a record needs no torch."""

    name: str
    """As a record and a config file call it."""
    record: type[RunRecord]
    """The class of its records."""
    reasons: str | None = None
    """Where it says what its time is made of, as `module:NAME`; None for the defaults of `explain.reasons`."""
