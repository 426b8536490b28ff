"""What an explanation is made of: plain frozen values, in seconds a unit of work unless said.

The unit is the workload's: a token, a call, a training step. For generation a token is one decode step, which makes one
token of every sequence of the batch. Where an older record or a log does not tell prefill and decode apart, it is the
whole generation over its tokens, prefill included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarker.comparison.rows import CellKey, Context
from benchmarker.core import tables
from benchmarker.profiling.categories import Category
from benchmarker.profiling.profile_table import NAME_COLUMNS, shortened
from benchmarker.schema.profile import Kernel

ShareName = Literal["floor", "excess", "products", "unpacking", "between", "not listed", "gaps"]
"""What the time of a unit is made of. `floor`: the products at the measured bandwidth or matmul rate. `excess`: what
they take beyond that. `products`: both, where no floor is known. `unpacking`: making plain weights of packed ones.
`between`: all other kernels, as far as they run alone. `not listed`: rows that a printed table leaves out. `gaps`: the
device waits."""

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
"""What a unit waits for: one of the shares, in the word for what is most of it."""


@dataclass(frozen=True)
class Phase:
    """What the profiler saw of the units, by the purpose of the kernels."""

    by: Literal["device", "cpu"]
    is_decode: bool
    """Whether it is decoding alone, without prefill."""
    tokens: int
    """Units that the totals of `kernels` are of."""
    busy_s: float
    """Seconds a unit in which a kernel ran; on CPU the operators' own time, without bookkeeping."""
    categories: dict[Category, float]
    """Seconds a unit by purpose. Kernels that overlap are each counted in full."""
    kernels: tuple[Kernel, ...]
    """Calls and seconds of each kernel over all units, longest first."""
    profiled_s: float | None
    """Seconds a unit with the profiler on; None where it was not measured."""
    not_listed_s: float = 0.0
    """Seconds a unit of kernels that a printed table leaves out."""
    launches: float | None = None
    """Launches a unit: how often the host gave the device work; None where it was not counted."""

    @property
    def kernel_s(self) -> float:
        """All kernels, overlapping ones each counted."""
        return sum(self.categories.values()) + self.not_listed_s

    @property
    def what(self) -> str:
        """Whose time it is: a processor's table has no kernels."""
        return "kernel time" if self.by == "device" else "operators' time"

    @property
    def kernel_calls(self) -> float:
        return sum(kernel.calls for kernel in self.kernels) / self.tokens

    def share(self, *categories: Category) -> float:
        """Part of the kernel time that is for these purposes."""
        return (
            sum(self.categories.get(category, 0.0) for category in categories) / self.kernel_s if self.kernel_s else 0.0
        )


@dataclass(frozen=True)
class Conversion:
    """A copy of each weight before it is multiplied: dequantizing under another name."""

    kernel: Kernel
    share: float
    """Of the kernel time."""


@dataclass(frozen=True)
class Floor:
    """The least time that the products of a unit can take."""

    seconds: float
    by: Literal["bytes", "flops"]
    """Whichever takes longer: moving the bytes at the measured bandwidth, or the arithmetic at the measured rate."""
    fewer: float = 0.0
    """Part of it that another form of the same work can save, such as fewer bits a weight."""


@dataclass(frozen=True)
class Part:
    """One reason for a unit's time."""

    name: str
    share: ShareName
    """The kind of the part."""
    seconds: float


@dataclass(frozen=True)
class Share:
    """All parts of one kind together."""

    name: ShareName
    label: str
    """Its name for a reader."""
    seconds: float
    avoidable_s: float
    """What of it another form, engine or kernel could save."""
    of_total: float
    """Part of the unit's time, between 0 and 1."""

    @property
    def speed_up(self) -> float:
        """How many times as fast a unit would be without what of it is avoidable."""
        saved = self.of_total * self.avoidable_s / self.seconds if self.seconds else 0.0
        return 1 / (1 - saved) if saved < 1 else float("inf")


@dataclass(frozen=True)
class Waterfall:
    """A unit's measured time as a sum."""

    total_s: float
    """Measured without the profiler."""
    parts: tuple[Part, ...]
    busy_share: float
    """Busy time with the profiler over the time without it: the profiler slows the host, hardly the kernels."""
    slow_down: float | None
    """A unit with the profiler over one without."""

    def of(self, *names: str) -> float:
        """Seconds of these parts together."""
        return sum(part.seconds for part in self.parts if part.name in names)


@dataclass(frozen=True)
class Ceiling:
    """How fast the same kernels would be if the host never made the device wait: a range, as what lies between two
    kernels of a replayed graph is not known to the last tenth of a microsecond."""

    per_s: float
    """At most, with nothing between kernels."""
    least_per_s: float | None
    """At least, with the time of an empty kernel between any two. None where that was not measured."""


@dataclass(frozen=True)
class Verdict:
    """What a unit waits for, the numbers behind that, and what to do."""

    bounds: tuple[Bound, ...]
    """The largest avoidable share, and others that are as large."""
    reason: str
    """One sentence with the numbers."""
    advice: str
    """What to do about it, without numbers, so that variants with one cause share it."""
    is_unsure: bool = False
    """Whether the bounds are alternatives, as the profiler may have slowed the kernels."""

    @property
    def bound(self) -> str:
        """`host`, `bandwidth and small kernels`, `matrix products or host`."""
        *others, last = self.bounds
        return f"{', '.join(others)} {'or' if self.is_unsure else 'and'} {last}" if others else last


@dataclass(frozen=True)
class Proof:
    """What really ran, from what was loaded and from the kernels that were seen."""

    lines: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    """For the reader who believes the variant's name."""


@dataclass(frozen=True)
class Explanation:
    """One variant in one cell."""

    variant: str
    form: dict[str, str]
    """What of the variant a reader should see beside its name, such as its quantization and its engine."""
    cell: CellKey | None
    """None for a workload whose profile does not say which of its cells it is of."""
    phase: Phase
    waterfall: Waterfall
    verdict: Verdict
    proof: Proof
    shares: tuple[Share, ...] = ()
    """What its time is made of, in the order of `ShareName`."""
    unit: str = "token"
    """Of the workload."""
    conversion: Conversion | None = None
    mbu: float | None = None
    """Share of the measured bandwidth that a unit used for what it had to move."""
    ceiling: Ceiling | None = None
    """Of a graph engine, for one on a device that has the host launch every kernel."""
    prefill: str | None = None
    """The same question for what runs before the units that are explained, in a sentence."""
    notes: tuple[str, ...] = field(default=())
    """What the reader must know of the numbers."""


@dataclass(frozen=True)
class NotExplained:
    """A variant without a profile that can be used: why, and what is known all the same."""

    variant: str
    why: str
    proof: Proof | None = None
    """What was loaded, which is known without a profile."""
    allows: str | None = None
    """What its time and its bytes allow to say, in a sentence."""
    least_share: float | None = None
    """What of its time moving its bytes takes at the measured bandwidth; None where that was not measured."""


def bounds_of(explanations: Sequence[Explanation | NotExplained]) -> dict[tuple[str, Context], str]:
    """What each explained variant is bound by, by its name and the context that was profiled."""
    return {
        (explanation.variant, explanation.cell.context): explanation.verdict.bound
        for explanation in explanations
        if isinstance(explanation, Explanation) and explanation.cell is not None
    }


def part_names(explained: Sequence[Explanation]) -> list[str]:
    """Names of all parts that any of them has, gaps last."""
    waterfalls = sorted((explanation.waterfall for explanation in explained), key=lambda fall: -len(fall.parts))
    parts = [part for fall in waterfalls for part in fall.parts]
    return list(dict.fromkeys(part.name for part in sorted(parts, key=lambda part: _ORDER[part.share])))


_ORDER: dict[ShareName, int] = {
    "floor": 0, "excess": 1, "products": 2, "unpacking": 3, "between": 4, "not listed": 5, "gaps": 6,
}  # fmt: skip


def ms(seconds: float) -> str:
    """`27.8 ms`, with three digits."""
    value = seconds * 1e3
    places = 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{places}f} ms"


def signed_ms(seconds: float) -> str:
    """`+24.1 ms`, `-6.6 ms`."""
    return f"{'+' if seconds >= 0 else '-'}{ms(abs(seconds))}"


def rate(per_s: float, unit: str = "token") -> str:
    """`120 tok/s`; `80.5 calls/s` of another unit."""
    what = "tok" if unit == "token" else f"{unit}s"
    return f"{per_s:.0f} {what}/s" if per_s >= 100 else f"{per_s:.1f} {what}/s"


def code(name: str, columns: int = NAME_COLUMNS) -> str:
    """A kernel's name as code, which nothing in it can end."""
    return tables.code(shortened(name, columns))
