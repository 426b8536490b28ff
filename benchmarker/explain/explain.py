"""Explanation of a variant, made of its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarker.comparison.rows import CellKey
from benchmarker.core.formatting import percent
from benchmarker.core.tables import unmarked
from benchmarker.explain.case import Case, Timed, graph_ceiling
from benchmarker.explain.difference import Contrast
from benchmarker.explain.phases import unpacking
from benchmarker.explain.values import Explanation, NotExplained, code, ms
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
    return {name: values[name] for name in (OLDER_CELL if values.keys() >= set(OLDER_CELL) else values)}
