"""Explanation of a variant's speed, computed from its records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

from benchmarker.comparison.rows import Results, Row, with_ends
from benchmarker.comparison.speed_up import SpeedUp, speed_ups
from benchmarker.core.formatting import ms, percent
from benchmarker.core.tables import plain_line, unmarked
from benchmarker.explain.phases import Ceiling, Conversion, Phase, rate_in_graph, unpacking
from benchmarker.explain.verdict import SLOWED_FROM, Verdict, verdict_of
from benchmarker.explain.waterfall import NotExplained, Part, Proof, ShareName, Timed
from benchmarker.profiling.kernel_categories import UNKNOWN_LIMIT, category
from benchmarker.profiling.profile_table import kernel_code
from benchmarker.schema.model import LoadFacts
from benchmarker.schema.record import DISTURBING, RunRecord
from benchmarker.schema.registry import workload_of

FASTER_PROFILED = 0.97
"""Quotient (time with profiler) / (time without) below which the profiled process must have had a higher clock."""


@dataclass(frozen=True, kw_only=True)
class Explanation(Timed):
    variant: str
    unit: str

    @cached_property
    def verdict(self) -> Verdict:
        return verdict_of(self, self.unit)

    @cached_property
    def ceiling(self) -> Ceiling | None:
        """Rate of the kernels in a replayed CUDA graph; None if a graph would not remove launches."""
        return rate_in_graph(self.phase, self.record.limits, units=self.units) if self.can_replay else None

    @cached_property
    def proof(self) -> Proof:
        phase, load = self.phase, self.loaded
        proof = loaded_proof(load, replaces_linears=self.replaces_linears) if load else Proof(())
        lines, warnings = [*proof.lines], [*proof.warnings]
        products = [kernel.name for kernel in phase.kernels if category(kernel.name) in ("matmul", "quantized matmul")]
        if products:
            lines.append(f"matrix products by {', '.join(map(kernel_code, products[:SHOWN_KERNELS]))}")
        if load and load.quantized_fraction and _multiplies_in_full(phase, load, self.conversion):
            warnings.append(
                "not a low-bit product: the quantized weights are converted to 16 or 32 bits, and multiplied like any "
                "others"
            )
        return Proof(tuple(lines), tuple(warnings))


def explain(name: str, records: Sequence[RunRecord]) -> Explanation | NotExplained:
    """Return the explanation of a variant's speed, from the first profile and the times of all records."""
    workload = workload_of(records[0].workload)
    if void := type(records[0]).why_void(records):
        return NotExplained(name, void)
    timed = workload.timed(name, records)
    if isinstance(timed, NotExplained):
        return timed
    last_cells = [record.cells[last] for record in records if (last := record.last_good) is not None]
    if last_cells and all(DISTURBING.intersection(cell.flags) for cell in last_cells):
        return NotExplained(name, "other programs disturbed the measurement; measure again after they have ended")
    timed = replace(timed, phase=unpacking(timed.phase, timed.conversion))
    explanation = Explanation(**vars(timed), variant=name, unit=workload.unit)
    return replace(explanation, notes=(*timed.notes, *_notes(explanation)))


def _notes(explanation: Explanation) -> list[str]:
    phase, unit, total_s = explanation.phase, explanation.unit, explanation.total_s
    busy_share, slow_down = explanation.busy_share, explanation.slow_down
    notes = []
    if slow_down is not None and slow_down < FASTER_PROFILED:
        notes.append(
            f"the process that was profiled was faster than the others ({slow_down:.2f}x their time a {unit}): "
            "the gaps are uncertain by as much"
        )
    elif slow_down is not None and phase.profiled_s is not None and slow_down >= SLOWED_FROM:
        gaps = explanation.part("gaps")
        most = 1 - (1 - gaps) * max(1.0, busy_share) / slow_down
        notes.append(
            f"with the profiler a {unit} took {ms(phase.profiled_s)}, {slow_down:.2f}x the {ms(total_s)} "
            f"without it: the gaps are {percent(gaps)} of the time without, or up to {percent(most)} if it slowed the "
            "kernels too"
        )
    if busy_share > SLOWED_FROM:
        notes.append(
            f"the profiled kernels alone took {ms(phase.busy_s)}, longer than the {ms(total_s)} of a whole {unit} "
            "without the profiler, which slowed them: their shares hold, how long the device waits is not known"
        )
    if explanation.floor is None:
        missing = (
            "bytes of the products were not counted" if explanation.record.limits else "bandwidth was not measured"
        )
        notes.append(f"the {missing}: the least time of the products is not known")
    if phase.share("other") > UNKNOWN_LIMIT:
        unknown = next(kernel.name for kernel in phase.kernels if category(kernel.name) == "other")
        notes.append(
            f"{percent(phase.share('other'))} of the {phase.what} has no category: no rule covers names such as "
            f"{kernel_code(unknown)}"
        )
    if phase.not_listed_s:
        notes.append(f"{percent(phase.not_listed_s / phase.kernel_s)} of the {phase.what} is not in the table")
    return notes


FALLBACKS = {
    "TorchLinear": "gptqmodel's fallback, which dequantizes with torch operators and multiplies in 16 bits",
    "TorchFusedLinear": "gptqmodel's fallback",
}
DEQUANTIZE_FROM = 0.15
"""Share of the kernel time. If dequantization takes more, most weights are dequantized before they are multiplied."""
SHOWN_KERNELS = 3
FEW = 1 / 3
"""Number of low-bit products per quantized layer below which most layers used another kernel. Fusion can merge up to
five of a decoder layer's seven products into one."""


def loaded_proof(load: LoadFacts, *, replaces_linears: bool) -> Proof:
    counts = {"linear layers": load.linear_classes, "weights": load.weight_classes}
    lines = (
        f"{percent(load.quantized_fraction)} of the parameters quantized, {load.bits_per_weight:.2f} bits a weight "
        f"with scales and unquantized tensors; lm_head {plain_line(load.lm_head_dtype)}",
        "; ".join(f"{name}: {_counted(classes)}" for name, classes in counts.items() if classes),
    )
    slow = [name for name in load.linear_classes if name in FALLBACKS and not replaces_linears]
    return Proof(lines, tuple(f"torch fallback: {plain_line(name)} is {FALLBACKS[name]}" for name in slow))


def _counted(classes: dict[str, int]) -> str:
    by_count = sorted(classes.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {plain_line(name)}" for name, count in by_count)


def _multiplies_in_full(phase: Phase, load: LoadFacts, conversion: Conversion | None) -> bool:
    low_bit = sum(kernel.calls for kernel in phase.kernels if category(kernel.name) == "quantized matmul")
    layers = sum(
        count for name, count in load.weight_classes.items() if not name.endswith(("float16", "bfloat16", "float32"))
    )
    if low_bit / phase.tokens >= FEW * layers:
        return False
    if conversion or phase.share("dequantize") >= DEQUANTIZE_FROM:
        return True
    # A compiled matmul kernel may contain the conversion, and a kernel without a category may be a low-bit product.
    may_be_fused = any(
        category(kernel.name) == "matmul" and kernel.name.startswith(("triton_", "cpp_")) for kernel in phase.kernels
    )
    return not may_be_fused and phase.share("other") <= UNKNOWN_LIMIT


ORDER_OF_AXES = ("prompt_tokens", "new_tokens", "batch_size", "depth", "prompts")
INFINITE = float("inf")


def explanations_to_rows(
    explanations: Sequence[Explanation | NotExplained], contrasts: Sequence[Contrast] = ()
) -> list[dict[str, Any]]:
    contrast_of = {contrast.variant.variant: contrast for contrast in contrasts}
    return [
        _row(explanation, contrast_of.get(explanation.variant))
        if isinstance(explanation, Explanation)
        else {"variant": explanation.variant, "not_explained": unmarked(explanation.why), "allows": explanation.allows}
        for explanation in explanations
    ]


def _row(explanation: Explanation, contrast: Contrast | None) -> dict[str, Any]:
    ceiling, cell, unit = explanation.ceiling, explanation.cell, explanation.unit
    phase = explanation.phase
    axes = dict(cell.pairs) if cell else {}
    # Text generation's axes keep the order of older releases.
    order = [name for name in ORDER_OF_AXES if name in axes] if "new_tokens" in axes else axes
    return {
        "variant": explanation.variant,
        **explanation.form,
        **{name: axes[name] for name in order},
        "bound_by": explanation.verdict.bound,
        "bounds": list(explanation.verdict.bounds),
        "reason": unmarked(explanation.verdict.reason),
        "advice": unmarked(explanation.verdict.advice),
        "is_decode": phase.is_decode,
        f"{unit}_s": explanation.total_s,
        "parts_s": {part.name: part.seconds for part in explanation.waterfall},
        "shares": {share.name: share.of_total for share in explanation.shares},
        "speed_up_without": {share.name: share.speed_up for share in explanation.shares if share.speed_up < INFINITE},
        "busy_share": explanation.busy_share,
        "profiler_slow_down": explanation.slow_down,
        "mbu": explanation.mbu,
        f"kernels_per_{unit}": phase.kernel_calls if phase.by == "device" else None,
        f"launches_per_{unit}": phase.launches,
        f"graph_{unit}s_per_s": ceiling.per_s if ceiling else None,
        f"graph_{unit}s_per_s_at_least": ceiling.least_per_s if ceiling else None,
        "baseline": contrast.baseline.variant if contrast else None,
        **with_ends("ratio", contrast.speed_up.ratio if contrast else None),
        "verdict": contrast.speed_up.verdict if contrast else None,
        "more_s": dict(contrast.parts) if contrast else None,
        "proof": list(map(unmarked, explanation.proof.lines)),
        "warnings": list(map(unmarked, explanation.proof.warnings)),
        "notes": list(map(unmarked, explanation.notes)),
    }


def with_bounds(rows: Sequence[Row], explanations: Sequence[Explanation | NotExplained]) -> tuple[Row, ...]:
    """Return the rows with `bound_by`. An explanation applies to all cells of its variant with equal `context`."""
    explained = [each for each in explanations if isinstance(each, Explanation) and each.cell]
    bounds = {(each.variant, each.cell and each.cell.context): each.verdict.bound for each in explained}
    return tuple(
        replace(row, bound_by=bounds.get((row.variant, row.cell.context), row.bound_by))
        if row.cell and row.status == "ok"
        else row
        for row in rows
    )


def part_names(explained: Sequence[Explanation]) -> list[str]:
    waterfalls = sorted((explanation.waterfall for explanation in explained), key=lambda parts: -len(parts))
    parts = [part for waterfall in waterfalls for part in waterfall]
    order = get_args(ShareName)
    return list(dict.fromkeys(part.name for part in sorted(parts, key=lambda part: order.index(part.share))))


SMALLEST_PART = 0.02
PRODUCT_SHARES = ("floor", "excess", "products")
_WORDS = {"other": "other kernels", "not in the table": "kernels not in the tables"}
NOT_TESTED = "not tested"
VERDICTS = {"same": "as fast as", "inconclusive": "not separated from"}


@dataclass(frozen=True)
class Contrast:
    baseline: Explanation
    variant: Explanation
    speed_up: SpeedUp  # Ratio of the rates by which the tables rank the rows.
    is_of_call: bool = False  # True if that is the rate of the whole call, while the explained unit is a token.

    @property
    def parts(self) -> list[tuple[str, float]]:
        """Seconds of the variant minus those of the baseline by part of the waterfall, largest difference first."""
        before, after = _parts(self.baseline.waterfall), _parts(self.variant.waterfall)
        changes = [(name, after.get(name, 0.0) - before.get(name, 0.0)) for name in before | after]
        return sorted((change for change in changes if change[1]), key=lambda change: -abs(change[1]))

    def sentence(self, *, is_tagged: bool = True) -> str:
        """Return `int8 is slower than fp16 (0.61x [0.60, 0.62]): +6 ms/token gaps`; `(not tested)` if `is_tagged`."""
        unit, verdict, ratio = self.variant.unit, self.speed_up.verdict, self.speed_up.text
        baseline = plain_line(self.baseline.variant) + " in whole calls" * self.is_of_call
        speed = f"is {VERDICTS.get(verdict, f'{verdict} than')} {baseline} ({ratio})"
        if verdict == NOT_TESTED:
            speed = f"is {ratio} as fast as {baseline}" + f" ({NOT_TESTED})" * is_tagged
        largest = max((abs(seconds) for _, seconds in self.parts), default=0.0)
        parts = [part for part in self.parts if abs(part[1]) > SMALLEST_PART * largest][:4]
        note = " (converting each weight before it is multiplied)" if self.variant.conversion else ""
        words = [
            f"{'+' if seconds >= 0 else '-'}{ms(abs(seconds))} {name}{note if name == 'dequantizing' else ''}"
            for name, seconds in parts
        ]
        if words:
            words[0] = words[0].replace(" ms ", f" ms/{unit} ", 1)
        return f"{plain_line(self.variant.variant)} {speed}{': ' if words else ''}{', '.join(words)}"


def contrasts_of(explanations: Sequence[Explanation | NotExplained], results: Results) -> tuple[Contrast, ...]:
    """Return the difference between each explained variant and the baseline in its cell, with the tables' ratio."""
    explained = {
        (variant.variant, variant.cell): variant for variant in explanations if isinstance(variant, Explanation)
    }
    base = next((variant for (name, _), variant in explained.items() if name == results.baseline), None)
    tested = speed_ups(results.rows, dict.fromkeys(results.members, results.baseline), results.circumstances)
    contrasts = []
    for row, speed_up in zip(results.rows, tested, strict=True):
        variant, ratios = explained.get((row.variant, row.cell)), (row.speed_up, row.against_named, speed_up)
        ratio = next((ratio for ratio in ratios if ratio and ratio.reference == results.baseline), None)
        if base and variant and ratio and (base.phase.is_decode, base.cell) == (variant.phase.is_decode, variant.cell):
            contrasts.append(Contrast(base, variant, ratio, row.is_ranked_by_call))
    return tuple(contrasts)


def _parts(waterfall: Sequence[Part]) -> dict[str, float]:
    times: dict[str, float] = {}
    for part in waterfall:
        name = "matrix products" if part.share in PRODUCT_SHARES else _WORDS.get(part.name, part.name)
        times[name] = times.get(name, 0.0) + part.seconds
    return times
