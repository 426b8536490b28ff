"""The columns of text generation beyond the declared metrics: what a variant costs and is worth beside its speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarker.comparison.rows import CellKey, headline
from benchmarker.core.formatting import MISSING, decimal, percent, significant, with_spread
from benchmarker.core.tables import Column, code
from benchmarker.report.columns import InCell, byte_columns, memory, metric_column, number_columns
from benchmarker.schema.quality_words import INDISTINGUISHABLE, change_text, kl_text
from benchmarker.schema.status_words import status_words
from benchmarker.workloads.generation.reading.rows import GenerationRow

Columns = list[Column[GenerationRow]]
SHOWN_ELSEWHERE = ("latency", "decode")
"""Metrics that need no column of their own kind: the first column, and what the first table is ranked by."""


def names(rows: Sequence[GenerationRow]) -> Columns:
    """The columns of the variant's name, and of its engine where that varies."""
    columns = [Column[GenerationRow]("variant", lambda row: row.variant, "left")]
    if len({row.engine for row in rows}) > 1:
        columns.append(Column("engine", lambda row: row.engine, "left"))
    return columns


def cell_columns(rows: Sequence[InCell], *, always: bool = False) -> list[Column[InCell]]:
    """A column for each axis of the cell that varies; with `always`, for prompt, new tokens and batch in any case."""
    parts: dict[str, Callable[[CellKey], int]] = {
        "prompt": lambda key: key.prompt_tokens,
        "new": lambda key: key.new_tokens,
        "batch": lambda key: key.batch_size,
    }
    keys = [row.cell for row in rows if row.cell]
    varying = {name: value_of for name, value_of in parts.items() if always or len(set(map(value_of, keys))) > 1}
    if any(key.depth for key in keys):
        varying["depth"] = lambda key: key.depth
    if any(key.text for key in keys):
        varying["text"] = lambda key: key.text + 1
    return [Column(name, _cell_text(value_of), sort=_cell_number(value_of)) for name, value_of in varying.items()]


def _cell_text(value_of: Callable[[CellKey], int]) -> Callable[[InCell], str]:
    return lambda row: str(value_of(row.cell)) if row.cell else MISSING


def _cell_number(value_of: Callable[[CellKey], int]) -> Callable[[InCell], float | None]:
    return lambda row: value_of(row.cell) if row.cell else None


def timing(rows: Sequence[GenerationRow]) -> Columns:
    """The columns of latency, TTFT, TPOT, tok/s and further declared metrics. In a row without numbers, the first says
    why."""
    # tok/s is the latency turned over, so that one of the two spreads is enough.
    latency = Column[GenerationRow](
        "latency s", lambda row: _latency(row), sort=lambda row: row.latency.value if row.latency else None
    )
    declared = rows[0].described.metrics if rows else ()
    metrics = (metric for metric in declared if metric.name not in SHOWN_ELSEWHERE and not metric.of_cell)
    return [latency, *(metric_column(metric) for metric in metrics if any(metric.name in row.metrics for row in rows))]


def _latency(row: GenerationRow) -> str:
    return decimal(row.latency.value) if row.latency else status_words(row.status)


def costs(rows: Sequence[GenerationRow]) -> Columns:
    """The columns of memory, bits, loading, set-up, energy and quality, as far as they were measured."""
    return [
        *memory(rows),
        *byte_columns(rows, "weights", lambda row: row.weight_bytes),
        *number_columns(rows, "bits/weight", lambda row: row.bits_per_weight, lambda bits: f"{bits:.2f}"),
        *number_columns(rows, "load s", lambda row: row.load_s, lambda load_s: decimal(load_s, digits=3)),
        *_setup(rows),
        *energy(rows),
        *number_columns(rows, "perplexity", lambda row: row.perplexity, decimal),
        *_divergence(rows),
        *number_columns(rows, "top-1 agreement", lambda row: row.top1_agreement, percent),
    ]


def _setup(rows: Sequence[GenerationRow]) -> Columns:
    """The column of set-up; two where it was measured with an empty compiler's cache and with a filled one."""
    times = {"setup s": lambda row: row.setup_s}
    if any(row.setup_cold_s and row.setup_warm_s for row in rows):
        times = {
            "cold setup s": lambda row: row.setup_cold_s if row.setup_warm_s else row.setup_s,
            "warm setup s": lambda row: row.setup_warm_s,
        }
    return [
        column
        for heading, seconds_of in times.items()
        for column in number_columns(rows, heading, seconds_of, lambda setup_s: decimal(setup_s, digits=3))
    ]


def _divergence(rows: Sequence[GenerationRow]) -> Columns:
    if all(row.kl_divergence is None for row in rows):
        return []
    return [Column("KL divergence", _divergence_text, sort=lambda row: row.kl_divergence)]


def _divergence_text(row: GenerationRow) -> str:
    """The divergence of a row, or a word where it is not above the baseline's divergence from itself."""
    if row.kl_divergence is None:
        return MISSING
    if row.quality and not row.quality.is_reference and not row.quality.is_distinguishable:
        return INDISTINGUISHABLE
    return significant(row.kl_divergence, 3)


def brief(rows: Sequence[GenerationRow]) -> Columns:
    """The column of the time to the first token."""
    return number_columns(rows, "TTFT ms", lambda row: row.ttft.value * 1e3 if row.ttft else None, decimal)


def quality_brief(rows: Sequence[GenerationRow]) -> Columns:
    """The column of how far a variant's predictions are from the baseline's."""
    return [replace(column, heading="KL", help="KL divergence, nats a token") for column in _divergence(rows)]


def quality_words(row: GenerationRow) -> str:
    """`KL divergence 0.0183 ± 0.0005, perplexity 17.59`, or why there is no number."""
    if row.quality and row.quality.is_baseline:
        return f"perplexity {decimal(row.quality.perplexity)}"
    if row.quality and row.kl_divergence is not None:
        return f"KL divergence {kl_text(row.quality)}, perplexity {change_text(row.quality)}"
    return (
        "quality not measured: random weights"
        if row.dummy_weights
        else f"quality not measured: add {code('--quality quick')}"
    )


def energy(rows: Sequence[GenerationRow]) -> Columns:
    """The columns of the whole board's energy; with its spread, which is never small enough to leave out."""
    if not any(row.energy for row in rows):
        return []
    return [
        Column(
            "J/token",
            lambda row: with_spread(row.energy.per_token if row.energy else None),
            sort=lambda row: row.energy.per_token.value if row.energy else None,
        ),
        *number_columns(rows, "net J/token", lambda row: row.energy.net_per_token_j if row.energy else None, decimal),
        *number_columns(
            rows, "decode J/token", lambda row: row.energy.decode_per_token_j if row.energy else None, decimal
        ),
        *number_columns(rows, "prefill J", lambda row: row.energy.prefill_j if row.energy else None, decimal),
    ]


def every_cell(rows: Sequence[GenerationRow]) -> Columns:
    """What the table of every cell has beyond speed and memory: energy, where it was counted elsewhere than at the
    first table's cell. It is counted at the largest cell that a variant could do, which is not always that one."""
    return energy(rows) if any(row.energy and row.cell != headline(rows) for row in rows) else []
