"""Values of an explanation, in seconds per unit of work.

The unit is the workload's: a token, a call, a training step. For generation it is one decode step, which makes one
token of every sequence of the batch. If a record or log does not separate prefill and decode, it is the whole
generation divided by its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarker.comparison.rows import CellKey, Context
from benchmarker.core import tables
from benchmarker.profiling.categories import Category
from benchmarker.profiling.profile_table import NAME_COLUMNS, shortened
from benchmarker.schema.record import Kernel

ShareName = Literal["floor", "excess", "products", "unpacking", "between", "not listed", "gaps"]
"""Kinds of time. `floor`: products at the measured bandwidth or matmul rate. `excess`: the time of products above the
floor. `products`: both, if the floor is unknown. `unpacking`: dequantization. `between`: all other kernels while they
run alone. `not listed`: rows that a printed table leaves out. `gaps`: the device waits."""

Bound = Literal[
    "host",
    "bandwidth",
    "compute",
    "slow products",
    "matrix products",
    "dequantizing",
    "attention/KV",
    "linear attention",
    "copies",
    "communication",
    "small kernels",
    "unknown kernels",
]
"""Name of the bottleneck: one of the shares, named by its largest part."""


@dataclass(frozen=True)
class Phase:
    """Profiled units by purpose of the kernels."""

    by: Literal["device", "cpu"]
    is_decode: bool
    """True for decoding without prefill."""
    tokens: int
    """Units in the totals of `kernels`."""
    busy_s: float
    """Seconds per unit in which a kernel ran; on CPU the operators' own time, without bookkeeping."""
    categories: dict[Category, float]
    """Seconds per unit by purpose. Overlapping kernels are each counted in full."""
    kernels: tuple[Kernel, ...]
    """Calls and seconds of each kernel over all units, longest first."""
    profiled_s: float | None
    """Seconds per unit with the profiler; None if not measured."""
    not_listed_s: float = 0.0
    """Seconds per unit of kernels that a printed table leaves out."""
    launches: float | None = None
    """Launches per unit; None if not counted."""

    @property
    def kernel_s(self) -> float:
        """Time of all kernels; overlapping ones are each counted."""
        return sum(self.categories.values()) + self.not_listed_s

    @property
    def what(self) -> str:
        return "kernel time" if self.by == "device" else "operators' time"

    @property
    def kernel_calls(self) -> float:
        return sum(kernel.calls for kernel in self.kernels) / self.tokens

    def share(self, *categories: Category) -> float:
        """Return the part of the kernel time with these purposes."""
        return (
            sum(self.categories.get(category, 0.0) for category in categories) / self.kernel_s if self.kernel_s else 0.0
        )


@dataclass(frozen=True)
class Conversion:
    """A copy of each weight before it is multiplied: dequantization under another name."""

    kernel: Kernel
    share: float
    """Part of the kernel time."""


@dataclass(frozen=True)
class Floor:
    """Shortest time of a unit's products."""

    seconds: float
    by: Literal["bytes", "flops"]
    """The longer of the two: moving the bytes, or the arithmetic."""
    fewer: float = 0.0
    """Part that another form of the same work can save, such as fewer bits per weight."""


@dataclass(frozen=True)
class Part:
    """One part of a unit's time."""

    name: str
    share: ShareName
    seconds: float


@dataclass(frozen=True)
class Share:
    """All parts of one kind."""

    name: ShareName
    label: str
    """Name in sentences."""
    seconds: float
    avoidable_s: float
    """Time that another form, engine or kernel could save."""
    of_total: float
    """Part of the unit's time."""

    @property
    def speed_up(self) -> float:
        """Ratio of the unit's time to its time without the avoidable part."""
        saved = self.of_total * self.avoidable_s / self.seconds if self.seconds else 0.0
        return 1 / (1 - saved) if saved < 1 else float("inf")


@dataclass(frozen=True)
class Waterfall:
    """A unit's measured time as a sum of parts."""

    total_s: float
    """Time without the profiler."""
    parts: tuple[Part, ...]
    busy_share: float
    """Busy time with the profiler divided by the time without it. The profiler slows the host, hardly the kernels."""
    slow_down: float | None
    """Time with the profiler divided by the time without it."""

    def of(self, *names: str) -> float:
        """Return the seconds of these parts."""
        return sum(part.seconds for part in self.parts if part.name in names)


@dataclass(frozen=True)
class Ceiling:
    """Rate of the same kernels without waiting for the host: a range, because the time between two kernels of a graph
    is not known exactly."""

    per_s: float
    """Upper end: nothing between kernels."""
    least_per_s: float | None
    """Lower end: the time of an empty kernel between any two; None if not measured."""


@dataclass(frozen=True)
class Verdict:
    """The bottleneck of a unit, with numbers and advice."""

    bounds: tuple[Bound, ...]
    """The largest avoidable share, and others of that size."""
    reason: str
    """One sentence with the numbers."""
    advice: str
    """Advice without numbers, so that variants with one cause share it."""
    is_unsure: bool = False
    """True if the bounds are alternatives, because the profiler may have slowed the kernels."""

    @property
    def bound(self) -> str:
        """Return `host`, `bandwidth and small kernels`, `matrix products or host`."""
        *others, last = self.bounds
        return f"{', '.join(others)} {'or' if self.is_unsure else 'and'} {last}" if others else last


@dataclass(frozen=True)
class Proof:
    """Layers and kernels that really ran."""

    lines: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    """Contradictions to the variant's name."""


@dataclass(frozen=True)
class Explanation:
    """One variant in one cell."""

    variant: str
    form: dict[str, str]
    """Fields that are shown with the variant's name, such as quantization and engine."""
    cell: CellKey | None
    """None if the profile does not identify its cell."""
    phase: Phase
    waterfall: Waterfall
    verdict: Verdict
    proof: Proof
    shares: tuple[Share, ...] = ()
    """Shares of the time in the order of `ShareName`."""
    unit: str = "token"
    conversion: Conversion | None = None
    mbu: float | None = None
    """Share of the measured bandwidth that a unit used."""
    ceiling: Ceiling | None = None
    """Ceiling of a graph engine, on a device whose kernels are launched by the host."""
    prefill: str | None = None
    """A sentence on the bottleneck of the work before the units."""
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class NotExplained:
    """A variant without a usable profile."""

    variant: str
    why: str
    proof: Proof | None = None
    """Proof from the loaded layers, which needs no profile."""
    allows: str | None = None
    """A sentence that follows from time and bytes alone."""
    least_share: float | None = None
    """Share of the time that moving the bytes takes at the measured bandwidth; None if not measured."""


def bounds_of(explanations: Sequence[Explanation | NotExplained]) -> dict[tuple[str, Context], str]:
    """Return the bound of each explained variant by its name and profiled context."""
    return {
        (explanation.variant, explanation.cell.context): explanation.verdict.bound
        for explanation in explanations
        if isinstance(explanation, Explanation) and explanation.cell is not None
    }


def part_names(explained: Sequence[Explanation]) -> list[str]:
    """Return the names of all parts, gaps last."""
    waterfalls = sorted((explanation.waterfall for explanation in explained), key=lambda fall: -len(fall.parts))
    parts = [part for fall in waterfalls for part in fall.parts]
    return list(dict.fromkeys(part.name for part in sorted(parts, key=lambda part: _ORDER[part.share])))


_ORDER: dict[ShareName, int] = {
    "floor": 0, "excess": 1, "products": 2, "unpacking": 3, "between": 4, "not listed": 5, "gaps": 6,
}  # fmt: skip


def ms(seconds: float) -> str:
    """Return `27.8 ms`, with three digits."""
    value = seconds * 1e3
    places = 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{places}f} ms"


def signed_ms(seconds: float) -> str:
    """Return `+24.1 ms` or `-6.6 ms`."""
    return f"{'+' if seconds >= 0 else '-'}{ms(abs(seconds))}"


def rate(per_s: float, unit: str = "token") -> str:
    """Return `120 tok/s`, or `80.5 calls/s` for another unit."""
    what = "tok" if unit == "token" else f"{unit}s"
    return f"{per_s:.0f} {what}/s" if per_s >= 100 else f"{per_s:.1f} {what}/s"


def code(name: str, columns: int = NAME_COLUMNS) -> str:
    """Return a kernel's name as code."""
    return tables.code(shortened(name, columns))
