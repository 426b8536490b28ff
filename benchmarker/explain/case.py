"""All that a verdict on one variant rests on."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarker.comparison.rows import CellKey
from benchmarker.explain.values import Conversion, Floor, Phase, Share, ShareName, Waterfall
from benchmarker.schema.record import RunRecord


@dataclass(frozen=True)
class Timed:
    """What was profiled, with its time without the profiler."""

    record: RunRecord
    """The one that has the profile."""
    phase: Phase
    total_s: float
    """A unit without the profiler, over all processes."""
    cell: CellKey | None = None
    floor: Floor | None = None
    conversion: Conversion | None = None
    mbu: float | None = None
    """Share of the bandwidth that was used, over all processes; None where it or the bytes were not measured."""
    units: int = 1
    """That one step makes at once: tokens of a batch."""
    notes: tuple[str, ...] = ()
    before: str | None = None
    """What is to be said of the time before the units."""


@dataclass(frozen=True)
class Case:
    """All that a verdict rests on."""

    timed: Timed
    phase: Phase
    """With a copy that converts each weight as unpacking."""
    waterfall: Waterfall
    shares: tuple[Share, ...]

    @property
    def record(self) -> RunRecord:
        return self.timed.record

    @property
    def device(self) -> str | None:
        """cuda, rocm or cpu; None where a log does not say."""
        return self.record.environment.device.kind

    def part(self, *names: ShareName) -> float:
        """What of the unit's time these shares are together, between 0 and 1."""
        return sum(share.of_total for share in self.shares if share.name in names)
