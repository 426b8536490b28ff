"""All that a verdict on one variant rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarker.comparison.rows import CellKey
from benchmarker.explain.values import Bound, Conversion, Floor, Phase, Share, ShareName, Waterfall
from benchmarker.explain.waterfall import FLOORS, PARTS, PRODUCTS
from benchmarker.schema.model import LoadFacts
from benchmarker.schema.record import RunRecord


@dataclass(frozen=True)
class Timed:
    """What was profiled, with its time without the profiler."""

    record: RunRecord
    """The record that has the profile."""
    phase: Phase
    total_s: float
    """Seconds a unit without the profiler, over all processes."""
    cell: CellKey | None = None
    floor: Floor | None = None
    conversion: Conversion | None = None
    mbu: float | None = None
    """Share of the bandwidth that was used, over all processes; None where it or the bytes were not measured."""
    units: int = 1
    """Units that one step makes at once: the tokens of a batch."""
    notes: tuple[str, ...] = ()
    """What a reader must know of the numbers."""
    before: str | None = None
    """A sentence on what runs before the units, such as prefill."""
    form: Mapping[str, str] = field(default_factory=dict)
    """Fields that are shown of the variant beside its name, such as its engine."""
    parts: Mapping[str, str] = field(default_factory=lambda: PARTS)
    """Name of the part of the waterfall for each category of kernels."""
    floors: Mapping[str, str] = field(default_factory=lambda: FLOORS)
    """Name of the floor, by its kind: `bytes` or `flops`."""
    products: tuple[str, ...] = PRODUCTS
    """Categories of kernels to which the floor applies."""
    advice: Mapping[Bound, Callable[[Case], str]] = field(default_factory=dict)
    """Advice in place of the default, by bound."""
    loaded: LoadFacts | None = None
    """What was loaded, as proof of what ran."""
    replaces_linears: bool = False
    """Whether the engine multiplied with other kernels than those of the loaded layers."""
    can_replay: bool = False
    """Whether a CUDA graph would remove the launches, so that its ceiling is worth printing."""


@dataclass(frozen=True)
class Case:
    """All that a verdict rests on."""

    timed: Timed
    phase: Phase
    """As in `timed`, but a copy that converts each weight counts as unpacking."""
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
        """These shares together, as part of the unit's time, between 0 and 1."""
        return sum(share.of_total for share in self.shares if share.name in names)
