"""What two printed profiler tables say together, one of an attention in separate operators and one of a fused kernel.

Such a pair is what people have after they replaced an attention: two tables and one ratio. The tables hold more: where
the time went, what limited either, and what neither can tell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarker.core.numbers import percent, times
from benchmarker.core.stats import Ratio
from benchmarker.core.units import gib, seconds
from benchmarker.profiling.categories import category
from benchmarker.profiling.printed_values import ProfilerTable, TableRow

PASSES = 6
"""Times that an unfused attention without a mask moves its scores: product, scaling twice, softmax twice, product."""
ROTARY = ("aten::mul", "aten::add", "aten::sub", "aten::cat", "aten::neg")
"""What a rotary embedding written in torch consists of."""
_FLOAT32_PRODUCT = re.compile(r"(?<!tf32_)sgemm")
_CLAIM = re.compile(r"(?im)^.*?(?:加速比|speed-?up)\D*?(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Unfused:
    """What the table of the separate operators says."""

    table: ProfilerTable
    calls: int
    """Calls of the attention: of its softmax."""
    call_s: float
    """Device time of one, with everything around it that the table totals."""
    scores_bytes: int
    """Of one matrix of scores: what one softmax allocates."""
    softmax_s: float
    """Of one call."""
    flops: float | None
    """Of one call's two products, as the table counts them."""

    @property
    def softmax_bytes_per_s(self) -> float:
        """The scores are read once and written once."""
        return 2 * self.scores_bytes / self.softmax_s

    @property
    def moving_s(self) -> float:
        """What moving the scores six times takes at the rate that the softmax reached."""
        return PASSES * self.scores_bytes / self.softmax_bytes_per_s


@dataclass(frozen=True)
class Fused:
    """What the table of the fused kernel says."""

    table: ProfilerTable
    kernel: TableRow
    calls: int
    call_s: float
    rotary_s: float
    """Of one call: operators that a rotary embedding consists of."""


def unfused_in(table: ProfilerTable) -> Unfused | None:
    """The table of an attention whose softmax is an operator with scores of its own; None where there is none."""
    softmax = _row(table, "aten::_softmax")
    if softmax is None or not softmax.self_device_memory_bytes or not softmax.self_device_s or not table.device_s:
        return None
    products = _row(table, "aten::bmm")
    return Unfused(
        table=table,
        calls=softmax.calls,
        call_s=table.device_s / softmax.calls,
        scores_bytes=round(softmax.self_device_memory_bytes / softmax.calls),
        softmax_s=softmax.self_device_s / softmax.calls,
        flops=products.flops / softmax.calls if products is not None and products.flops else None,
    )


def fused_in(table: ProfilerTable) -> Fused | None:
    """The table of an attention that is one kernel; None where there is none, or a softmax beside it."""
    if _row(table, "aten::_softmax") is not None or not table.device_s:
        return None
    kernels = [row for row in table.kernels if category(row.name) == "attention"]
    if not kernels:
        return None
    kernel = max(kernels, key=lambda row: row.self_device_s or 0.0)
    rotary_s = sum(row.self_device_s or 0.0 for row in table.operators if row.name in ROTARY)
    return Fused(table, kernel, kernel.calls, table.device_s / kernel.calls, rotary_s / kernel.calls)


def attention_sentences(tables: Sequence[ProfilerTable], text: str = "") -> tuple[str, ...]:
    """What was won and where, for a text with one table of either kind; nothing for any other.

    Args:
        text: The whole log, in which a ratio may be claimed.
    """
    before = [unfused for table in tables if (unfused := unfused_in(table))]
    after = [fused for table in tables if (fused := fused_in(table))]
    if len(before) != 1 or len(after) != 1:
        return ()
    return tuple(_sentences(before[0], after[0], text))


def _sentences(before: Unfused, after: Fused, text: str) -> list[str]:
    ratio = before.call_s / after.call_s
    gone = before.scores_bytes * before.calls
    sentences = [
        f"won: {times(Ratio(ratio, rounds=1))} in device time, from {seconds(before.call_s)} to "
        f"{seconds(after.call_s)} a call",
        f"gone: {gib(gone)} of scores in {before.calls:,} calls ({gib(before.scores_bytes)} a call), which the softmax "
        "and each operator before it wrote anew",
        f"the first was bound by bandwidth: moving its scores {PASSES} times at the "
        f"{before.softmax_bytes_per_s / 1e9:.0f} GB/s that its softmax reached takes {seconds(before.moving_s)} of "
        f"{seconds(before.call_s)} ({percent(before.moving_s / before.call_s)})",
    ]
    sentences += [*_flops(before, after), *_rotary(after), *_claim(before, after, text)]
    return [*sentences, *_counted_twice(before, after), *UNKNOWN]


UNKNOWN = (
    "not in the log: whether both compute the same, which calls were warm-up, and the time without the profiler",
    "the comparison is with separate operators: against torch's scaled_dot_product_attention in 16 bit it may be a "
    "loss; `benchmarker run attention` measures that",
)


def _flops(before: Unfused, after: Fused) -> list[str]:
    if before.flops is None:
        return []
    first, second = (before.flops / call_s / 1e12 for call_s in (before.call_s, after.call_s))
    kernel_s = (after.kernel.self_device_s or 0.0) / after.calls
    told = "none" if after.kernel.flops is None else f"{after.kernel.flops / after.calls / 1e9:.2f} GFLOP"
    sentences = [
        f"FLOPs: the log counts {before.flops / 1e9:.2f} GFLOP a call for the first and {told} for the fused kernel; "
        f"by the same count the rates are {first:.2f} and {second:.2f} TFLOP/s, "
        f"and {before.flops / kernel_s / 1e12:.2f} in the fused kernel alone"
    ]
    plain = [row.name for row in before.table.kernels if _FLOAT32_PRODUCT.search(row.name)]
    if plain:
        sentences.append(f"the products of the first are in float32 without tensor cores ({', '.join(plain)})")
    return sentences


def _rotary(after: Fused) -> list[str]:
    if not after.rotary_s:
        return []
    return [
        f"next: elementwise operators such as a rotary embedding's (multiply, add, subtract, concatenate) are now "
        f"{seconds(after.rotary_s)} of {seconds(after.call_s)} ({percent(after.rotary_s / after.call_s)})"
    ]


def _claim(before: Unfused, after: Fused, text: str) -> list[str]:
    """The ratio that the log claims, beside those of its own tables."""
    claim = _CLAIM.search(text)
    ratios = {"device": before.call_s / after.call_s}
    if before.table.cpu_s and after.table.cpu_s:
        ratios["CPU"] = before.table.cpu_s / before.calls / (after.table.cpu_s / after.calls)
    if claim is None:
        return []
    value = float(claim[1])
    by_tables = " and ".join(f"{ratio:.2f} in {name} time" for name, ratio in ratios.items())
    exact = any(f"{ratio:.2f}" == f"{value:.2f}" for ratio in ratios.values())
    return [
        f"the log claims {value:.2f}; its tables give {by_tables}"
        + ("" if exact else ", so it was timed in another way")
    ]


def _counted_twice(before: Unfused, after: Fused) -> list[str]:
    """Rows whose time is not to be added up."""
    nested = [row for row in before.table.operators if (row.device_total_s or 0.0) > 10 * (row.self_device_s or 0.0)]
    sentences = []
    if nested:
        names = ", ".join(row.name for row in nested)
        sentences.append(f"not to be added up: the CUDA totals of {names} hold those of the operators that they called")
    launch = _row(after.table, "cudaLaunchKernel")
    if launch is not None and launch.self_device_s:
        sentences.append(f"{seconds(launch.self_device_s)} of device time at cudaLaunchKernel are the profiler's own")
    return sentences


def _row(table: ProfilerTable, name: str) -> TableRow | None:
    return next((row for row in table.rows if row.name == name), None)
