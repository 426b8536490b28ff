"""Bottleneck of a unit of work, such as a token: the largest avoidable share of its time.

    floor      matrix products at the measured bandwidth or matmul rate; avoidable only by fewer bytes or operations
    excess     time of the matrix products above the floor
    unpacking  dequantization, including a copy that converts each weight
    between    all other kernels (norms, attention, copies, communication), while they run alone
    gaps       time in which no kernel runs

The shares add up to the measured time. A share within 10 % of the largest is a bottleneck too. If the floor is 80 % of
the time or more, it is the only bottleneck: avoiding everything else would gain at most 1.25x.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarker.comparison.roofline import Floor
from benchmarker.comparison.rows import listed
from benchmarker.core.formatting import ms, percent
from benchmarker.core.tables import code
from benchmarker.explain.phases import Phase
from benchmarker.explain.waterfall import LABELS, Bound, Share, ShareName, Timed
from benchmarker.profiling.kernel_categories import Category, category
from benchmarker.profiling.profile_table import kernel_code

AS_LARGE = 0.90
FEW_LAUNCHES = 0.1  # Launches per kernel below which the kernels are replayed as a graph.
NO_GAIN = 1.02
ENDLESS = 100.0  # Gain from which no number is printed: the share is nearly the whole time.
AT_FLOOR = 0.80  # Share of the floor from which it is the only bottleneck.
SLOWED_FROM = 1.05  # Profiled / unprofiled time from which the profiler counts as slowing kernels.

_BETWEEN: dict[Bound, tuple[Category, ...]] = {
    "small kernels": ("norm", "rotary", "elementwise", "sampling", "optimizer"),
    "attention/KV": ("attention", "KV update"),
    "linear attention": ("linear attention", "convolution"),
    "copies": ("copy/cast",),
    "communication": ("communication",),
    "unknown kernels": ("other",),
}
_FIXED: Mapping[ShareName, Bound] = {
    "excess": "slow products",
    "products": "matrix products",
    "unpacking": "dequantizing",
    "gaps": "host",
}


@dataclass(frozen=True)
class Verdict:
    bounds: tuple[Bound, ...]
    reason: str
    details: tuple[str, ...]  # Facts on the bottlenecks, such as a kernel's name; `reason` ends with them.
    advice: str  # Advice without numbers, so that it is equal for variants with the same bottleneck.
    is_unsure: bool = False  # True if the bounds are alternatives, because the profiler may have slowed the kernels.

    @property
    def bound(self) -> str:
        return listed(self.bounds, "or" if self.is_unsure else "and")


ADVICE: dict[Bound, str] = {
    "host": "Fewer launches help: larger inputs, a captured graph or a compiled step.",
    "bandwidth": "It is near what the memory allows: only fewer bytes make it faster.",
    "compute": "It is near what the arithmetic units allow: fewer or shorter operands make it faster.",
    "slow products": "A better kernel for the products helps most.",
    "matrix products": (
        f"Measure the bandwidth too (leave {code('--no-limits')} out): it shows the limit of the products."
    ),
    "dequantizing": "A kernel that multiplies the packed weights saves it.",
    "attention/KV": "Another attention kernel, or a shorter context, helps most.",
    "linear attention": "Another kernel of the mixer, a smaller state, or fewer heads help most.",
    "copies": "Fewer or fused copies help most.",
    "communication": "Less communication, or more arithmetic at the same time, helps most.",
    "small kernels": "Fusing them helps most.",
    "unknown kernels": "What they are for is not known; their names are in the notes.",
}


def verdict_of(timed: Timed, unit: str) -> Verdict:
    """Return the bottlenecks. There are two alternatives if the profiler may have changed the order of the shares."""
    phase, floor, slow_down = timed.phase, timed.floor, timed.slow_down
    bounds = bounds_of_shares(timed.shares, phase, floor)
    has_no_host = phase.by == "cpu" or (
        phase.launches is not None and phase.launches < FEW_LAUNCHES * phase.kernel_calls
    )
    is_unsure = False
    if has_no_host and slow_down and slow_down > SLOWED_FROM:
        shares = _if_kernels_were_slowed(timed.shares, max(1.0, timed.busy_share), slow_down)
        alternative = bounds_of_shares(shares, phase, floor)[0]
        is_unsure = alternative not in bounds
        bounds = (bounds[0], alternative) if is_unsure else bounds
    details = tuple(detail for bound in bounds if (detail := _detail(bound, timed)))
    advice = {**ADVICE, **timed.advice}
    texts = [advice[bound] for bound in bounds]
    sentences = dict.fromkeys(text if isinstance(text, str) else text(timed) for text in texts)
    reason = f"{all_share_words(timed.shares)} of each {ms(timed.total_s)} {unit}"
    reason = f"{'; '.join((reason, *details))}."
    return Verdict(bounds, reason, details, " ".join(sentences), is_unsure)


def bounds_of_shares(shares: Sequence[Share], phase: Phase, floor: Floor | None) -> tuple[Bound, ...]:
    by_kernels = max(_between(phase), key=lambda piece: piece[1])[0]
    at_floor: Bound = "compute" if floor is not None and floor.by == "flops" else "bandwidth"
    bound_of: dict[ShareName, Bound] = {**_FIXED, "floor": at_floor, "between": by_kernels}
    if any(share.name == "floor" and share.of_total >= AT_FLOOR for share in shares):
        return (at_floor,)
    candidates = sorted((share for share in shares if share.name != "not listed"), key=lambda share: -share.avoidable_s)
    as_large = [share for share in candidates[1:] if share.avoidable_s >= AS_LARGE * candidates[0].avoidable_s]
    return tuple(dict.fromkeys(bound_of[share.name] for share in (candidates[0], *as_large)))


def bound_of_kernels(phase: Phase) -> tuple[Bound, ...]:
    times: list[tuple[Bound, float]] = [
        ("matrix products", phase.seconds("matmul", "quantized matmul")),
        ("dequantizing", phase.seconds("dequantize")),
        ("host", phase.seconds("bookkeeping")),
        *_between(phase),
    ]
    times.sort(key=lambda piece: -piece[1])
    return tuple(bound for bound, own_s in times if own_s >= AS_LARGE * times[0][1])


def _between(phase: Phase) -> list[tuple[Bound, float]]:
    return [(bound, phase.seconds(*categories)) for bound, categories in _BETWEEN.items()]


def all_share_words(shares: Sequence[Share], *, least: float = 0.005) -> str:
    by_size = sorted(shares, key=lambda share: -share.seconds)
    return ", ".join(share_words(share) for share in by_size if share.of_total >= least)


def share_words(share: Share) -> str:
    how = " with less" if share.name == "floor" else " without"
    return f"{share.label} {percent(share.of_total)}{gain_words(share, how)}"


def gain_words(share: Share, how: str = "") -> str:
    """Return ` (1.72x without)`; empty if there is nothing to gain."""
    gain = share.speed_up
    return f" ({gain:.2f}x{how})" if NO_GAIN <= gain < ENDLESS else ""


def _detail(bound: Bound, timed: Timed) -> str:
    conversion = timed.conversion
    if bound == "slow products":
        least, excess = timed.part("floor"), timed.part("excess")
        limit = "bandwidth" if timed.floor and timed.floor.by == "bytes" else "matmul rate"
        return f"the products run at {percent(least / (least + excess))} of the measured {limit}"
    if bound == "dequantizing" and conversion:
        name = kernel_code(conversion.kernel.name)
        if conversion.category == "copy/cast":
            name = f"the copy kernel {name}, launched as often as there are matrix products"
        return f"each weight is converted before it is multiplied, by {name}"
    wanted: tuple[Category, ...] = ("dequantize",) if bound == "dequantizing" else _BETWEEN.get(bound, ())
    kernel = next((kernel.name for kernel in timed.phase.kernels if category(kernel.name) in wanted), None)
    return f"most of it in {kernel_code(kernel)}" if kernel else ""


def _if_kernels_were_slowed(shares: Sequence[Share], least: float, slowed: float) -> tuple[Share, ...]:
    """Return the shares if the profiler slowed the kernels by the factor `slowed`: shorter kernels, longer gaps."""
    factor = max(least, slowed) / least
    busy = {share.name: share for share in shares if share.name != "gaps"}
    total_s = sum(share.seconds for share in shares)
    seconds = {name: share.seconds / factor for name, share in busy.items()}
    # The floor is computed, not measured: the excess of the products shrinks first.
    products_s = seconds.get("floor", 0.0) + seconds.get("excess", 0.0)
    floor_s = busy["floor"].seconds if "floor" in busy else 0.0
    if "floor" in busy:
        seconds["floor"] = min(floor_s, products_s)
    if "excess" in busy:
        seconds["excess"] = max(0.0, products_s - floor_s)
    shorter = [
        replace(
            share,
            seconds=seconds[name],
            avoidable_s=share.avoidable_s / share.seconds * seconds[name],
            of_total=seconds[name] / total_s,
        )
        for name, share in busy.items()
    ]
    gaps_s = total_s - sum(seconds.values())
    return (*shorter, Share("gaps", LABELS["gaps"], gaps_s, gaps_s, gaps_s / total_s))
