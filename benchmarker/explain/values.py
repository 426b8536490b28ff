"""What an explanation is made of: plain frozen values, in seconds a token unless said.

A token here is one decode step, which makes one token of every sequence of the batch. Where an older record or a log
does not tell prefill and decode apart, it is the whole generation over its tokens, prefill included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarker.comparison.rows import CellKey, Context
from benchmarker.profiling.categories import Category
from benchmarker.schema.profile import Kernel

Bound = Literal[
    "host", "bandwidth", "compute", "bandwidth or compute", "dequantizing", "copies", "attention/KV", "mixed"
]
"""What a token waits for. `bandwidth or compute` is matrix products whose bandwidth was not measured."""

PartName = Literal[
    "reading the weights",
    "matrix products beyond that",
    "matrix products",
    "dequantizing",
    "attention",
    "KV cache",
    "norms, rotary, elementwise",
    "copies and casts",
    "sampling",
    "communication",
    "other",
    "not in the table",
    "gaps (launches, host)",
    "kernels at once",
    "unexplained",
]


@dataclass(frozen=True)
class Phase:
    """What the profiler saw of decoding, by purpose."""

    by: Literal["device", "cpu"]
    is_decode: bool
    """False where prefill is in it too."""
    tokens: int
    """That the totals of `kernels` were for."""
    busy_s: float
    """Union of the kernels' intervals; on CPU the operators' own time, without bookkeeping."""
    categories: dict[Category, float]
    kernels: tuple[Kernel, ...]
    """Calls and time over all tokens, longest first."""
    profiled_s: float | None
    """A token with the profiler on."""
    not_listed_s: float = 0.0
    """Kernel time that a printed table leaves out."""
    launches: float | None = None
    """Times a token that the host gave the device work."""

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
        return sum(self.categories.get(one, 0.0) for one in categories) / self.kernel_s if self.kernel_s else 0.0


@dataclass(frozen=True)
class Conversion:
    """A copy of each weight before it is multiplied: dequantizing under another name."""

    kernel: Kernel
    share: float
    """Of the kernel time."""


@dataclass(frozen=True)
class Part:
    """One reason for a token's time."""

    name: PartName
    seconds: float


@dataclass(frozen=True)
class Waterfall:
    """A token's measured time as a sum."""

    total_s: float
    """Measured without the profiler."""
    parts: tuple[Part, ...]
    busy_share: float
    """Busy time with the profiler over the time without it: the profiler slows the host, hardly the kernels."""
    slow_down: float | None
    """A token with the profiler over one without."""

    def of(self, *names: PartName) -> float:
        """Seconds of these parts together."""
        return sum(part.seconds for part in self.parts if part.name in names)


@dataclass(frozen=True)
class Ceiling:
    """How fast the same kernels would be if the host never made the device wait."""

    tokens_per_s: float
    is_bound: bool
    """Whether it is an upper bound alone: what is left of a launch in a replayed graph was not measured."""


@dataclass(frozen=True)
class Verdict:
    """What a token waits for, the numbers behind that, and what to do."""

    bound: Bound
    reason: str
    """One sentence with the numbers."""
    advice: str
    """What to do about it."""


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
    quant: str
    runtime: str
    cell: CellKey
    phase: Phase
    waterfall: Waterfall
    verdict: Verdict
    proof: Proof
    conversion: Conversion | None = None
    mbu: float | None = None
    """Share of the measured bandwidth that decoding used for what it had to read."""
    ceiling: Ceiling | None = None
    """Of a graph runtime, for one on a device that has the host launch every kernel."""
    prefill: str | None = None
    """The same question for the prompt, in a sentence."""
    notes: tuple[str, ...] = field(default=())
    """What the reader must know of the numbers."""


@dataclass(frozen=True)
class NotExplained:
    """A variant of which nothing can be said, and why."""

    variant: str
    why: str
    proof: Proof | None = None
    """What was loaded, which is known without a profile."""
    has_profile: bool = False
    """Whether one was made, which a reader then expects a reason from."""


def bounds_of(found: Sequence[Explanation | NotExplained]) -> dict[tuple[str, Context], Bound]:
    """What each explained variant is bound by, over the context that was profiled."""
    return {(one.variant, one.cell.context): one.verdict.bound for one in found if isinstance(one, Explanation)}
