"""Values of an explanation, in seconds per unit of work.

The unit is the workload's: a token, a call, a training step. For generation it is one decode step, which makes one
token of every sequence of the batch. If a record or log does not separate prefill and decode, it is the whole
generation divided by its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarker.core import tables
from benchmarker.profiling.kernel_categories import Category
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


@dataclass(frozen=True)
class Phase:
    by: Literal["device", "cpu"]
    is_decode: bool
    tokens: int
    """Units in the totals of `kernels`."""
    busy_s: float
    """Seconds per unit in which a kernel ran; on CPU the operators' own time, without bookkeeping."""
    categories: dict[Category, float]
    """Seconds per unit by purpose. Overlapping kernels are each counted in full."""
    kernels: tuple[Kernel, ...]
    """Calls and seconds of each kernel over all units, longest first."""
    profiled_s: float | None
    not_listed_s: float = 0.0
    launches: float | None = None

    @property
    def kernel_s(self) -> float:
        return sum(self.categories.values()) + self.not_listed_s

    @property
    def what(self) -> str:
        return "kernel time" if self.by == "device" else "operators' time"

    @property
    def kernel_calls(self) -> float:
        return sum(kernel.calls for kernel in self.kernels) / self.tokens

    def share(self, *categories: Category) -> float:
        spent_s = sum(self.categories.get(category, 0.0) for category in categories)
        return spent_s / self.kernel_s if self.kernel_s else 0.0


@dataclass(frozen=True)
class Conversion:
    """A copy of each weight before it is multiplied: dequantization under another name."""

    kernel: Kernel
    share: float


@dataclass(frozen=True)
class Floor:
    seconds: float
    by: Literal["bytes", "flops"]
    fewer: float = 0.0
    """Part that another form of the same work can save, such as fewer bits per weight."""


@dataclass(frozen=True)
class Part:
    name: str
    share: ShareName
    seconds: float


@dataclass(frozen=True)
class Share:
    name: ShareName
    label: str
    seconds: float
    avoidable_s: float
    of_total: float

    @property
    def speed_up(self) -> float:
        saved = self.of_total * self.avoidable_s / self.seconds if self.seconds else 0.0
        return 1 / (1 - saved) if saved < 1 else float("inf")


@dataclass(frozen=True)
class Waterfall:
    """A unit's measured time, without the profiler, as a sum of parts."""

    total_s: float
    parts: tuple[Part, ...]
    busy_share: float
    """Busy time with the profiler divided by the time without it. The profiler slows the host, hardly the kernels."""
    slow_down: float | None


@dataclass(frozen=True)
class Ceiling:
    """Rate of the same kernels without waiting for the host: a range, because the time between two kernels of a graph
    is an estimate."""

    per_s: float
    least_per_s: float | None
    """Lower end: the time of an empty kernel between any two; None if not measured."""


@dataclass(frozen=True)
class Verdict:
    bounds: tuple[Bound, ...]
    reason: str
    advice: str
    """Advice without numbers, so that variants with one cause share it."""
    is_unsure: bool = False
    """True if the bounds are alternatives, because the profiler may have slowed the kernels."""

    @property
    def bound(self) -> str:
        *others, last = self.bounds
        return f"{', '.join(others)} {'or' if self.is_unsure else 'and'} {last}" if others else last


@dataclass(frozen=True)
class Proof:
    lines: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    """Contradictions to the variant's name."""


@dataclass(frozen=True)
class NotExplained:
    variant: str
    why: str
    proof: Proof | None = None
    allows: str | None = None
    least_share: float | None = None
    """Share of the time that moving the bytes takes at the measured bandwidth; None if not measured."""


def ms(seconds: float) -> str:
    value = seconds * 1e3
    places = 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{places}f} ms"


def rate(per_s: float, unit: str = "token") -> str:
    """Return `120 tok/s`, or `80.5 calls/s` for another unit."""
    what = "tok" if unit == "token" else f"{unit}s"
    return f"{per_s:.0f} {what}/s" if per_s >= 100 else f"{per_s:.1f} {what}/s"


def code(name: str, columns: int = NAME_COLUMNS) -> str:
    return tables.code(shortened(name, columns))
