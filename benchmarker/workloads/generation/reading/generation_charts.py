"""Charts of text generation, in the order in which a page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

from benchmarker.comparison.rows import cell_words, headline
from benchmarker.report.charts.curves import board_chart, curve_chart, rounds_chart
from benchmarker.report.charts.speed import cells_chart, draw_against, front_note, memory_chart, rate_of, speed_chart
from benchmarker.report.charts.stacked import kernels_chart, profile_of, waterfall_chart, withheld_variants
from benchmarker.report.charts.style import Chart, Series, series_of
from benchmarker.report.compare import Comparison
from benchmarker.schema.record import RunRecord
from benchmarker.workloads.generation.reading.generation_rows import GenerationRow, over_batches
from benchmarker.workloads.generation.record import GenerationProfile


def charts_of(results: Comparison) -> list[Chart]:
    rows, members = cast("tuple[GenerationRow, ...]", results.rows), results.members
    cell, withheld = headline(rows), withheld_variants(results)
    chosen = [row for row in rows if row.cell == cell]
    looks = series_of({row.variant: row.family for row in rows})
    decoding = partial(
        curve_chart,
        cell=cell,
        looks=looks,
        value_of=lambda row: None if row.is_withheld else row.decode_tokens_per_s,
        vertical="decoded tokens per second",
    )
    depth = "depth + " if any(cell.depth for cell in results.measured_cells) else ""
    batch = " × batch" if any(cell.batch_size > 1 for cell in results.measured_cells) else ""
    charts = (
        speed_chart(chosen, looks),
        memory_chart(chosen, looks),
        quality_chart(chosen, looks),
        waterfall_chart(results.explained),
        decoding(
            rows,
            axis="depth",
            title="Decoding with a long context",
            horizontal="tokens in the KV cache before the prompt",
        ),
        decoding(
            over_batches(rows),
            axis="batch_size",
            title="Decoding many sequences at once",
            horizontal="sequences at once (batch size)",
            is_logarithmic=True,
            name="batch",
        ),
        cells_chart(rows, looks, shape=f"{depth}prompt + new tokens{batch}"),
        _kernels_chart({name: records for name, records in members.items() if name not in withheld}),
        rounds_chart(members, cell, looks),
        board_chart(members, looks),
    )
    return [chart for chart in charts if chart]


def quality_chart(rows: Sequence[GenerationRow], looks: dict[str, Series]) -> Chart | None:
    able = [row for row in rows if rate_of(row) and (row.is_baseline or row.kl_divergence is not None)]
    if all(row.kl_divergence is None for row in able):
        return None
    horizontal = "KL divergence from the baseline, nats, lower is better"
    return Chart(
        "speed-quality",
        f"Speed against quality at {cell_words(able[0].cell)}",
        "Quality is how far a variant's predictions are from the baseline's, which is at 0 itself. "
        f"{front_note(rows, able)}",
        draw_against(able, looks, lambda row: 0.0 if row.is_noise else row.kl_divergence or 0.0, horizontal),
    )


def _kernels_chart(members: Mapping[str, Sequence[RunRecord]]) -> Chart | None:
    profiles = {name: cast("GenerationProfile", profile_of(records)) for name, records in members.items()}
    profiles = {name: profile for name, profile in profiles.items() if profile}
    shapes = {
        (profile.prompt_tokens, profile.new_tokens, profile.batch_size, profile.distinct_prompts)
        for profile in profiles.values()
    }
    where = "".join(f": prompt {prompt}, {new} new tokens" for prompt, new, *_ in shapes) if len(shapes) == 1 else ""
    return kernels_chart(
        members,
        per="ms per generated token",
        units={name: profile.new_tokens * profile.batch_size for name, profile in profiles.items()},
        subject=f"generation of each variant{where}, prefill included",
    )
