"""Explanation of a variant, made of its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarker.comparison.rows import CellKey
from benchmarker.core.formatting import percent
from benchmarker.core.stats import SAME_WITHIN
from benchmarker.core.tables import plain_line, unmarked
from benchmarker.explain.case import Case, Timed, graph_ceiling
from benchmarker.explain.phases import unpacking
from benchmarker.explain.values import Explanation, NotExplained, ShareName, Waterfall, code, ms, signed_ms
from benchmarker.explain.verdict import verdict_of
from benchmarker.explain.waterfall import shares_of, waterfall
from benchmarker.explain.what_ran import proof_of
from benchmarker.profiling.categories import UNKNOWN_LIMIT, category
from benchmarker.schema.record import RunRecord
from benchmarker.schema.registry import workload_of

FASTER_PROFILED = 0.97
"""Share of the time without profiler below which a profiled unit must be from another process's clock."""
SLOWER_PROFILED = 1.05


def explain(name: str, records: Sequence[RunRecord]) -> Explanation | NotExplained:
    """Return why a variant is as fast as it is, or why it has no explanation.

    Args:
        records: All records of the variant, one per process. The first profile is used, with the times of all.
    """
    workload = workload_of(records[0].workload)
    timed = workload.timed(name, records)
    return timed if isinstance(timed, NotExplained) else _explanation(name, timed, workload.unit)


def _explanation(name: str, timed: Timed, unit: str) -> Explanation:
    phase = unpacking(timed.phase, timed.conversion)
    fall = waterfall(
        phase,
        total_s=timed.total_s,
        floor=timed.floor,
        parts=timed.parts,
        floors=timed.floors,
        products=timed.products,
    )
    case = Case(timed, phase, fall, shares_of(fall, timed.floor))
    return Explanation(
        variant=name,
        form=dict(timed.form),
        cell=timed.cell,
        phase=phase,
        waterfall=fall,
        verdict=verdict_of(case, unit),
        proof=proof_of(phase, timed.loaded, timed.conversion, replaces_linears=timed.replaces_linears),
        shares=case.shares,
        unit=unit,
        conversion=timed.conversion,
        mbu=timed.mbu,
        ceiling=graph_ceiling(phase, case.record.limits, units=timed.units) if timed.can_replay else None,
        prefill=timed.before,
        notes=(*timed.notes, *_notes(case, unit)),
    )


def _notes(case: Case, unit: str) -> list[str]:
    phase, fall = case.phase, case.waterfall
    notes = []
    if fall.slow_down is not None and fall.slow_down < FASTER_PROFILED:
        notes.append(
            f"the process that was profiled was faster than the others ({fall.slow_down:.2f}x their time a {unit}): "
            "the gaps are uncertain by as much"
        )
    elif fall.slow_down is not None and phase.profiled_s is not None:
        notes.append(
            f"with the profiler a {unit} took {ms(phase.profiled_s)}, {fall.slow_down:.2f}x the {ms(fall.total_s)} "
            f"without it{_gaps(case)}"
        )
    if fall.busy_share > SLOWER_PROFILED:
        notes.append(
            f"the profiled kernels alone took {ms(phase.busy_s)}, longer than the {ms(fall.total_s)} of a whole {unit} "
            "without the profiler, which slowed them: their shares hold, how long the device waits is not known"
        )
    if case.timed.floor is None:
        notes.append("the bandwidth or the bytes were not measured: the least time of the products is not known")
    if phase.share("other") > UNKNOWN_LIMIT:
        unknown = next(kernel.name for kernel in phase.kernels if category(kernel.name) == "other")
        notes.append(
            f"{percent(phase.share('other'))} of the {phase.what} has no category: no rule covers names such as "
            f"{code(unknown)}"
        )
    if phase.not_listed_s:
        notes.append(f"{percent(phase.not_listed_s / phase.kernel_s)} of the {phase.what} is not in the table")
    return notes


def _gaps(case: Case) -> str:
    slowed, gaps = case.waterfall.slow_down or 1.0, case.part("gaps")
    sentence = f": the gaps are {percent(gaps)} of the time without"
    if slowed < SLOWER_PROFILED:
        return sentence
    most = 1 - (1 - gaps) * max(1.0, case.waterfall.busy_share) / slowed
    return f"{sentence}, or up to {percent(most)} if it slowed the kernels too"


OLDER_CELL = ("prompt_tokens", "new_tokens", "batch_size", "depth")
"""Axes of a cell of text generation in the order of the JSON."""
INFINITE = float("inf")


def explanations_to_rows(
    explanations: Sequence[Explanation | NotExplained], contrasts: Sequence[Contrast] = ()
) -> list[dict[str, Any]]:
    """Return one object per variant for JSON."""
    contrast_of = {contrast.variant: contrast for contrast in contrasts}
    return [
        _row(explanation, contrast_of.get(explanation.variant))
        if isinstance(explanation, Explanation)
        else {"variant": explanation.variant, "not_explained": unmarked(explanation.why), "allows": explanation.allows}
        for explanation in explanations
    ]


def _row(explanation: Explanation, contrast: Contrast | None) -> dict[str, Any]:
    ceiling, cell, unit = explanation.ceiling, explanation.cell, explanation.unit
    waterfall, phase = explanation.waterfall, explanation.phase
    return {
        "variant": explanation.variant,
        **explanation.form,
        **(_axes(cell) if cell else {}),
        "bound_by": explanation.verdict.bound,
        "bounds": list(explanation.verdict.bounds),
        "reason": unmarked(explanation.verdict.reason),
        "advice": unmarked(explanation.verdict.advice),
        "is_decode": phase.is_decode,
        f"{unit}_s": waterfall.total_s,
        "parts_s": {part.name: part.seconds for part in waterfall.parts},
        "shares": {share.name: share.of_total for share in explanation.shares},
        "speed_up_without": {share.name: share.speed_up for share in explanation.shares if share.speed_up < INFINITE},
        "busy_share": waterfall.busy_share,
        "profiler_slow_down": waterfall.slow_down,
        "mbu": explanation.mbu,
        f"kernels_per_{unit}": phase.kernel_calls if phase.by == "device" else None,
        f"launches_per_{unit}": phase.launches,
        f"graph_{unit}s_per_s": ceiling.per_s if ceiling else None,
        f"graph_{unit}s_per_s_at_least": ceiling.least_per_s if ceiling else None,
        "baseline": contrast.baseline if contrast else None,
        "ratio": contrast.ratio if contrast else None,
        "more_s": dict(contrast.parts) if contrast else None,
        "proof": list(map(unmarked, explanation.proof.lines)),
        "warnings": list(map(unmarked, explanation.proof.warnings)),
        "notes": list(map(unmarked, explanation.notes)),
    }


def _axes(cell: CellKey) -> dict[str, Any]:
    values = dict(cell.pairs)
    names = (*OLDER_CELL, "prompts") if values.keys() >= set(OLDER_CELL) else values
    return {name: values[name] for name in names if name in values}


SMALLEST_PART = 0.02
"""Part of the largest difference below which a difference is not named."""
_TOGETHER: dict[ShareName, str] = {
    "floor": "matrix products",
    "excess": "matrix products",
    "products": "matrix products",
}
_WORDS = {"other": "other kernels", "not in the table": "kernels not in the tables"}
UNSURE = ("same", "inconclusive", "not tested")
"""Verdicts without a significant difference."""


@dataclass(frozen=True)
class Contrast:
    """A variant compared with another, in seconds per unit."""

    variant: str
    baseline: str
    ratio: float
    """Time per unit of the variant divided by the baseline's."""
    parts: tuple[tuple[str, float], ...]
    """Additional seconds of the variant by part, the largest difference first. Their sum is the total difference."""
    is_converting: bool = False
    """True if the variant converts each weight by a copy before it is multiplied."""
    unit: str = "token"
    verdict: str | None = None
    """Verdict of the comparison on whole calls."""

    def sentence(self) -> str:
        """Return `int8 is 1.64x slower than fp16: +24.1 ms/token copies and casts, -6.6 ms matrix products`."""
        slower_by = max(self.ratio, 1 / self.ratio)
        speed = (
            f"takes as long a {self.unit} as {plain_line(self.baseline)} (within {percent(SAME_WITHIN, places=0)})"
            if slower_by <= 1 + SAME_WITHIN
            else f"is {slower_by:.2f}x {'slower' if self.ratio > 1 else 'faster'} than {plain_line(self.baseline)}"
        )
        if self.verdict in UNSURE:
            speed += f" ({self.verdict})"
        largest = max((abs(seconds) for _, seconds in self.parts), default=0.0)
        parts = [part for part in self.parts if abs(part[1]) > SMALLEST_PART * largest][:4]
        words = [f"{signed_ms(seconds)} {self._named(name)}" for name, seconds in parts]
        if words:
            words[0] = words[0].replace(" ms ", f" ms/{self.unit} ", 1)
        return f"{plain_line(self.variant)} {speed}{': ' if words else ''}{', '.join(words)}"

    def _named(self, name: str) -> str:
        if name == "dequantizing" and self.is_converting:
            return f"{name} (converting each weight before it is multiplied)"
        return name


def contrast(baseline: Explanation, variant: Explanation, verdict: str | None = None) -> Contrast | None:
    """Return the contrast with the baseline; None for different cells, or if only one side includes prefill."""
    if baseline.phase.is_decode != variant.phase.is_decode or baseline.cell != variant.cell:
        return None
    before, after = _parts(baseline.waterfall), _parts(variant.waterfall)
    changes = [(name, after.get(name, 0.0) - before.get(name, 0.0)) for name in before | after]
    return Contrast(
        variant=variant.variant,
        baseline=baseline.variant,
        ratio=variant.waterfall.total_s / baseline.waterfall.total_s,
        parts=tuple(sorted(filter(lambda change: change[1], changes), key=lambda change: -abs(change[1]))),
        is_converting=variant.conversion is not None,
        unit=variant.unit,
        verdict=verdict,
    )


def contrasts_of(
    explanations: Sequence[Explanation | NotExplained],
    baseline: str,
    verdicts: Mapping[tuple[str, CellKey], str | None],
) -> tuple[Contrast, ...]:
    """Return the contrast of every explained variant with the baseline, if the baseline is explained.

    Args:
        verdicts: Verdicts of the comparison by variant and cell.
    """
    explained = [explanation for explanation in explanations if isinstance(explanation, Explanation)]
    base = next((explanation for explanation in explained if explanation.variant == baseline), None)
    if base is None:
        return ()
    contrasts = (
        contrast(base, variant, verdicts.get((variant.variant, variant.cell)) if variant.cell else None)
        for variant in explained
        if variant is not base
    )
    return tuple(filter(None, contrasts))


def _parts(fall: Waterfall) -> dict[str, float]:
    times: dict[str, float] = {}
    for part in fall.parts:
        name = _TOGETHER.get(part.share, _WORDS.get(part.name, part.name))
        times[name] = times.get(name, 0.0) + part.seconds
    return times
