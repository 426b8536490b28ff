"""What a token waits for. The rules in their order, each with its threshold; the first that holds is the verdict.

    1. busy < 70 % of the token, and no other part      host: the device waits for launches and Python
       is longer than the gaps
    2. MBU >= 60 % of the measured bandwidth            bandwidth: only fewer bytes would help
    3. arithmetic >= 40 % of the measured matmul rate   compute
    4. dequantizing >= 15 % of the kernel time          dequantizing (copies that convert each weight included)
    5. copies and casts >= 15 %                         copies
    6. attention and KV cache >= 40 %                   attention/KV
    7. matrix products >= 50 %, nothing measured        bandwidth or compute, which is not known
    8. otherwise                                        mixed

The thresholds are ours, a judgement; the numbers behind them are printed. Where a rule reads `not known`, as MBU does
in a record from before the bandwidth was measured, it does not hold.
"""

from __future__ import annotations

from benchmarker.core.numbers import percent
from benchmarker.explain.advice import advice_for
from benchmarker.explain.evidence import PRODUCTS, PRODUCTS_FROM, Case
from benchmarker.explain.numbers import code, ms
from benchmarker.explain.values import Bound, Conversion, PartName, Phase, Verdict, Waterfall
from benchmarker.profiling.categories import category

HOST_BELOW = 0.70
BANDWIDTH_FROM = 0.60
COMPUTE_FROM = 0.40
DEQUANTIZE_FROM = 0.15
COPIES_FROM = 0.15
ATTENTION_FROM = 0.40
GAPS: PartName = "gaps (launches, host)"


def verdict_of(case: Case) -> Verdict:
    """The verdict with its reason and advice."""
    bound = bound_of(case.phase, case.conversion, case)
    return Verdict(bound, _reason(bound, case), advice_for(bound, case))


def bound_of(phase: Phase, conversion: Conversion | None, case: Case | None = None) -> Bound:
    """The first rule that holds.

    Args:
        case: None where only the kernels are known, and neither the gaps between them nor the time without a profiler.
    """
    converting = conversion.share if conversion else 0.0
    is_unmeasured = case is None or case.mbu is None
    rules: tuple[tuple[bool, Bound], ...] = (
        (case is not None and case.waterfall.busy_share < HOST_BELOW and _is_mostly_gaps(case), "host"),
        (case is not None and (case.mbu or 0.0) >= BANDWIDTH_FROM, "bandwidth"),
        (case is not None and (case.compute_share or 0.0) >= COMPUTE_FROM, "compute"),
        (phase.share("dequantize") + converting >= DEQUANTIZE_FROM, "dequantizing"),
        (phase.share("copy/cast") >= COPIES_FROM, "copies"),
        (phase.share("attention", "KV update") >= ATTENTION_FROM, "attention/KV"),
        (is_unmeasured and phase.share(*PRODUCTS) >= PRODUCTS_FROM, "bandwidth or compute"),
    )
    return next((bound for holds, bound in rules if holds), "mixed")


def _is_mostly_gaps(case: Case) -> bool:
    """Whether the gaps are the longest single part."""
    products = case.waterfall.of("reading the weights", "matrix products beyond that", "matrix products")
    others = (part.seconds for part in case.waterfall.parts if part.name != GAPS)
    return case.waterfall.of(GAPS) >= max(products, *others)


def _reason(bound: Bound, case: Case) -> str:
    phase, fall = case.phase, case.waterfall
    waits = "the device waits for the host" if phase.by == "device" else "passes between operators, in Python and torch"
    busy = f"busy {ms(phase.busy_s)} of each {ms(fall.total_s)} token ({percent(fall.busy_share)})"
    copies, attention, products = (
        percent(phase.share(*categories)) for categories in (("copy/cast",), ("attention", "KV update"), PRODUCTS)
    )
    said = {
        "host": f"{percent(1 - fall.busy_share)} of each token {waits}",
        "bandwidth": f"it uses {percent(case.mbu or 0)} of the measured memory bandwidth",
        "compute": f"it uses {percent(case.compute_share or 0)} of the measured matmul rate",
        "dequantizing": _dequantizing(case) if bound == "dequantizing" else "",
        "copies": f"copies and casts take {copies} of the {phase.what}",
        "attention/KV": f"attention and the KV cache take {attention} of the {phase.what}",
        "bandwidth or compute": f"matrix products take {products} of the {phase.what}; which of the two is not known "
        "without a measured bandwidth",
        "mixed": _mixed(case, products),
    }[bound]
    reached = (
        f", {percent(case.mbu)} of the measured bandwidth" if case.mbu is not None and bound != "bandwidth" else ""
    )
    return f"{said}; {busy}{reached}."


def _mixed(case: Case, products: str) -> str:
    if case.slow_products is None:
        return f"no part stands out: {_largest(case.waterfall)}"
    return (
        f"matrix products take {products} of the {case.phase.what}, and read the weights at "
        f"{percent(case.slow_products)} of the measured bandwidth"
    )


def _dequantizing(case: Case) -> str:
    phase, conversion = case.phase, case.conversion
    if conversion is None:
        kernel = next(one for one in phase.kernels if category(one.name) == "dequantize")
        return (
            f"dequantizing takes {percent(phase.share('dequantize'))} of the {phase.what}, most of it in "
            f"{code(kernel.name)}"
        )
    return (
        f"each weight is converted before it is multiplied: {percent(conversion.share)} of the {phase.what} is one "
        f"copy kernel, {code(conversion.kernel.name)}, launched as often as there are matrix products"
    )


def _largest(fall: Waterfall, count: int = 3) -> str:
    parts = sorted((part for part in fall.parts if part.name != "unexplained"), key=lambda part: -part.seconds)[:count]
    return ", ".join(f"{part.name} {percent(part.seconds / fall.total_s)}" for part in parts)
