"""Explanations for a program: plain values in base units, null for what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarker.explain.difference import Contrast
from benchmarker.explain.values import Explanation, NotExplained
from benchmarker.logs.explain_table import TableReport
from benchmarker.schema.engine_names import older_name


def explanations_to_rows(
    found: Sequence[Explanation | NotExplained], contrasts: Sequence[Contrast] = ()
) -> list[dict[str, Any]]:
    """One object a variant. One that is not explained has only its name and why."""
    against = {one.variant: one for one in contrasts}
    return [
        _row(one, against.get(one.variant))
        if isinstance(one, Explanation)
        else {"variant": one.variant, "not_explained": one.why}
        for one in found
    ]


def _row(one: Explanation, contrast: Contrast | None) -> dict[str, Any]:
    ceiling = one.ceiling
    return {
        "variant": one.variant,
        "quant": one.quant,
        "engine": one.engine,
        "runtime": older_name(one.engine),
        "prompt_tokens": one.cell.prompt_tokens,
        "new_tokens": one.cell.new_tokens,
        "batch_size": one.cell.batch_size,
        "depth": one.cell.depth,
        "bound_by": one.verdict.bound,
        "reason": one.verdict.reason,
        "advice": one.verdict.advice,
        "is_decode": one.phase.is_decode,
        "token_s": one.waterfall.total_s,
        "parts_s": {part.name: part.seconds for part in one.waterfall.parts},
        "busy_share": one.waterfall.busy_share,
        "profiler_slow_down": one.waterfall.slow_down,
        "mbu": one.mbu,
        "kernels_per_token": one.phase.kernel_calls if one.phase.by == "device" else None,
        "launches_per_token": one.phase.launches,
        "graph_tokens_per_s": ceiling.tokens_per_s if ceiling else None,
        "graph_is_upper_bound": ceiling.is_bound if ceiling else None,
        "baseline": contrast.baseline if contrast else None,
        "ratio": contrast.ratio if contrast else None,
        "more_s": dict(contrast.parts) if contrast else None,
        "proof": list(one.proof.lines),
        "warnings": list(one.proof.warnings),
        "notes": list(one.notes),
    }


def table_to_row(report: TableReport) -> dict[str, Any]:
    """What a printed profiler table says by itself."""
    return {
        "table_line": report.table.line,
        "rank": report.table.rank,
        "by": report.phase.by,
        "bound_by": report.bound,
        "kernel_s": report.phase.kernel_s if report.table.known_total_s is not None else None,
        "categories_s": dict(report.phase.categories),
        "not_listed_s": report.phase.not_listed_s if report.table.not_listed_share is not None else None,
        "profiled_span_s": report.span_s,
        "busy_at_most_of_profiled_span": report.busy_at_most,
    }
