"""Explanations for a program: plain values in base units, null for what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarker.comparison.rows import CellKey
from benchmarker.explain.difference import Contrast
from benchmarker.explain.values import Explanation, NotExplained
from benchmarker.schema.engine_names import older_name

OLDER_CELL = ("prompt_tokens", "new_tokens", "batch_size", "depth")
"""Axes that a cell of text generation has had from the beginning, in their older order."""
INFINITE = float("inf")


def explanations_to_rows(
    found: Sequence[Explanation | NotExplained], contrasts: Sequence[Contrast] = ()
) -> list[dict[str, Any]]:
    """One object a variant. One that is not explained has only its name and why."""
    against = {one.variant: one for one in contrasts}
    return [
        _row(one, against.get(one.variant))
        if isinstance(one, Explanation)
        else {"variant": one.variant, "not_explained": one.why, "allows": one.allows}
        for one in found
    ]


def _row(one: Explanation, contrast: Contrast | None) -> dict[str, Any]:
    ceiling, cell = one.ceiling, one.cell
    return {
        "variant": one.variant,
        **one.form,
        # The older key stays, with the older words.
        **({"runtime": older_name(one.form["engine"])} if "engine" in one.form else {}),
        **(_axes(cell) if cell else {}),
        "bound_by": one.verdict.bound,
        "bounds": list(one.verdict.bounds),
        "reason": one.verdict.reason,
        "advice": one.verdict.advice,
        "is_decode": one.phase.is_decode,
        f"{one.unit}_s": one.waterfall.total_s,
        "parts_s": {part.name: part.seconds for part in one.waterfall.parts},
        "shares": {share.name: share.of_total for share in one.shares},
        "speed_up_without": {share.name: share.speed_up for share in one.shares if share.speed_up < INFINITE},
        "busy_share": one.waterfall.busy_share,
        "profiler_slow_down": one.waterfall.slow_down,
        "mbu": one.mbu,
        f"kernels_per_{one.unit}": one.phase.kernel_calls if one.phase.by == "device" else None,
        f"launches_per_{one.unit}": one.phase.launches,
        f"graph_{one.unit}s_per_s": ceiling.per_s if ceiling else None,
        f"graph_{one.unit}s_per_s_at_least": ceiling.least_per_s if ceiling else None,
        "baseline": contrast.baseline if contrast else None,
        "ratio": contrast.ratio if contrast else None,
        "more_s": dict(contrast.parts) if contrast else None,
        "proof": list(one.proof.lines),
        "warnings": list(one.proof.warnings),
        "notes": list(one.notes),
    }


def _axes(cell: CellKey) -> dict[str, Any]:
    values = dict(cell.pairs)
    return {name: values[name] for name in (OLDER_CELL if values.keys() >= set(OLDER_CELL) else values)}
