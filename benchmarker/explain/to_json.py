"""Explanations for a program: plain values in base units, null for what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarker.comparison.rows import CellKey
from benchmarker.core.tables import unmarked
from benchmarker.explain.difference import Contrast
from benchmarker.explain.values import Explanation, NotExplained

OLDER_CELL = ("prompt_tokens", "new_tokens", "batch_size", "depth")
"""Axes that a cell of text generation has had from the beginning, in their older order."""
INFINITE = float("inf")


def explanations_to_rows(
    explanations: Sequence[Explanation | NotExplained], contrasts: Sequence[Contrast] = ()
) -> list[dict[str, Any]]:
    """One object a variant; for one that is not explained, its name and why."""
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
