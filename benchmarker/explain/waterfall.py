"""Waterfall: the time of a unit of work, such as a token, as a sum of parts.

    time = floor + (products - floor) + unpacking + attention + norms + copies + ... + (time - busy)

`floor` is the least time of the matrix products. Kernel times come from a profiled repeat, `time` from repeats without
the profiler, which slows the host by half or more. Two rules keep the parts non-negative, with `time` as their sum:

- Time in which several kernels ran at once is subtracted from attention, norms, copies and the like, then from the
products. (Records with `alone_s` of each kernel have no such time.)
- If kernels took longer than `time`, the profiler slowed them: all kernel times are divided by the same factor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from benchmarker.comparison.roofline import Floor, floor_of
from benchmarker.comparison.rows import CellKey
from benchmarker.explain.phases import Conversion, Phase, phase_of
from benchmarker.schema.model import LoadFacts
from benchmarker.schema.record import RunRecord, median_latency_s

ShareName = Literal["floor", "excess", "products", "unpacking", "between", "not listed", "gaps"]
"""Kinds of time. `floor`: matrix products at the measured bandwidth or matmul rate. `excess`: their time above the
floor. `products`: both, if the floor is unknown. `unpacking`: dequantization. `between`: all other kernels while they
run alone. `not listed`: rows that a printed table leaves out. `gaps`: no kernel runs."""

BetweenProducts = Literal[
    "attention/KV", "linear attention", "copies", "communication", "small kernels", "unknown kernels"
]
Bound: TypeAlias = (
    Literal["host", "bandwidth", "compute", "slow products", "matrix products", "dequantizing"] | BetweenProducts
)
Advice: TypeAlias = "Mapping[Bound, str | Callable[[Timed], str]]"

FLOORS = {"bytes": "moving the bytes", "flops": "arithmetic at the measured rate"}
SMALL = "norms, rotary, elementwise"
PARTS: Mapping[str, str] = {
    "dequantize": "dequantizing",
    "attention": "attention",
    "KV update": "KV cache",
    "linear attention": "linear attention",
    "convolution": "linear attention",
    "norm": SMALL,
    "rotary": SMALL,
    "elementwise": SMALL,
    "copy/cast": "copies and casts",
    "sampling": "sampling",
    "communication": "communication",
    "optimizer": "optimizer",
    "other": "other",
}
PRODUCTS = ("matmul", "quantized matmul")
GAPS = "gaps (launches, host)"
LABELS: Mapping[ShareName, str] = {
    "excess": "products above the floor",
    "products": "matrix products",
    "unpacking": "dequantizing",
    "between": "between products",
    "not listed": "not in the table",
    "gaps": "gaps",
}
UNEXPLAINED = 0.01


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
class Proof:
    lines: tuple[str, ...]
    warnings: tuple[str, ...] = ()  # Facts that contradict the variant's name, such as products in 16 bits.


@dataclass(frozen=True)
class NotExplained:
    variant: str
    why: str
    proof: Proof | None = None
    allows: str | None = None
    least_share: float | None = None
    """Share of the measured time that moving the bytes takes at the measured bandwidth; None if not measured."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Profile of a variant, its time without the profiler, and facts for its explanation."""

    record: RunRecord
    phase: Phase  # In an `Explanation`, the time of a `Conversion` is counted as dequantization.
    total_s: float  # Seconds per unit without the profiler, over all processes.
    cell: CellKey | None = None
    floor: Floor | None = None
    conversion: Conversion | None = None
    mbu: float | None = None
    units: int = 1  # Number of tokens per decode step: the batch size.
    notes: tuple[str, ...] = ()
    prefill: str | None = None  # Sentence on the bottleneck of the prefill.
    form: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=lambda: PARTS)
    floors: Mapping[str, str] = field(default_factory=lambda: FLOORS)
    """Name of the floor by its kind: `bytes` or `flops`."""
    products: tuple[str, ...] = PRODUCTS  # Categories of kernels to which the floor applies.
    advice: Advice = field(default_factory=dict)
    loaded: LoadFacts | None = None
    replaces_linears: bool = False  # True if the engine multiplies with other kernels than those of the loaded layers.
    can_replay: bool = False  # True if a CUDA graph would remove the launches.

    @property
    def busy_share(self) -> float:
        """Time in which kernels ran with the profiler, divided by `total_s`, which is measured without it."""
        return self.phase.busy_s / self.total_s

    @property
    def slow_down(self) -> float | None:
        return self.phase.profiled_s / self.total_s if self.phase.profiled_s is not None else None

    @cached_property
    def waterfall(self) -> tuple[Part, ...]:
        """Parts of the time without the profiler. They add up to `total_s`."""
        phase, total_s, floor = self.phase, self.total_s, self.floor
        slowed = max(1.0, self.busy_share)
        busy_s = phase.busy_s / slowed
        categories = {str(name): seconds / slowed for name, seconds in phase.categories.items()}
        products_s = sum(categories.pop(name, 0.0) for name in self.products)
        between: dict[tuple[str, ShareName], float] = {}
        for name, part in self.parts.items():
            key: tuple[str, ShareName] = (part, "unpacking" if name == "dequantize" else "between")
            between[key] = between.get(key, 0.0) + categories.pop(name, 0.0)
        between["other", "between"] = between.get(("other", "between"), 0.0) + sum(categories.values())
        overlap_s = max(0.0, phase.kernel_s / slowed - busy_s)
        waiting_s = sum(seconds for (_, share), seconds in between.items() if share == "between")
        alone = max(0.0, 1 - overlap_s / waiting_s) if waiting_s else 1.0
        products_s -= min(max(0.0, overlap_s - waiting_s), products_s)
        times: dict[tuple[str, ShareName], float] = {}
        if floor is None:
            times["matrix products", "products"] = products_s
        else:
            # A small model's weights stay in the cache and are read faster than the floor, which assumes memory.
            times[self.floors[floor.by], "floor"] = min(products_s, floor.seconds)
            times["matrix products beyond that", "excess"] = max(0.0, products_s - floor.seconds)
        times |= {key: seconds * (alone if key[1] == "between" else 1.0) for key, seconds in between.items()}
        times["not in the table", "not listed"] = phase.not_listed_s / slowed
        times[GAPS, "gaps"] = max(0.0, total_s - busy_s)
        rest_s = total_s - sum(times.values())
        if abs(rest_s) > UNEXPLAINED * total_s:
            times["unexplained", "between"] = rest_s
        return tuple(Part(name, share, seconds) for (name, share), seconds in times.items() if seconds)

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """Parts of the waterfall by kind, without empty kinds. They add up to `total_s`."""
        times: dict[ShareName, float] = {}
        for part in self.waterfall:
            times[part.share] = times.get(part.share, 0.0) + part.seconds
        fewer = self.floor.fewer if self.floor else 0.0
        least = next((part.name for part in self.waterfall if part.share == "floor"), "")
        return tuple(
            Share(
                name=name,
                label=LABELS.get(name, f"{least} (the floor)"),
                seconds=seconds,
                avoidable_s=seconds * fewer if name == "floor" else seconds,
                of_total=seconds / self.total_s,
            )
            for name, seconds in times.items()
        )

    def part(self, *names: ShareName) -> float:
        return sum(share.of_total for share in self.shares if share.name in names)


def timed_profile(name: str, records: Sequence[RunRecord]) -> Timed | NotExplained:
    profiled = next((record for record in records if record.profile and record.last_good is not None), None)
    if profiled is None or profiled.profile is None or profiled.last_good is None:
        return NotExplained(name, f"no profile ({why_no_profile(records)})")
    cell = profiled.cells[profiled.last_good]
    return Timed(
        record=profiled,
        phase=phase_of(profiled.profile),
        total_s=median_latency_s(cell),
        floor=floor_of(cell.demand, profiled.limits),
    )


def why_no_profile(records: Sequence[RunRecord]) -> str:
    for record in sorted(records, key=lambda record: record.last_good is None):
        if record.no_profile:
            return record.no_profile.reason
        if record.profile and record.cells:
            # A stopped sweep keeps the profile of its last attempt, even if all cells are invalid.
            return f"discarded: {record.cells[-1].reason or record.cells[-1].status}"
    if all(record.last_good is None for record in records):
        return "no cell has a valid time"
    if all(record.procedure.get("profile") is False for record in records):
        return "left out by --no-profile"
    return "left out, or the run ended before it"
