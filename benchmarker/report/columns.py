"""The columns that tables are made of: each appears only where some row knows its value, or where it varies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from benchmarker.comparison.rows import CellKey, Results, Row
from benchmarker.core.numbers import decimal, percent, times, with_spread
from benchmarker.core.tables import Column, escaped
from benchmarker.core.units import GIB, MISSING, significant
from benchmarker.schema.quality_words import INDISTINGUISHABLE
from benchmarker.schema.status_words import status_words

MIB = 2**20
Columns = list[Column[Row]]


class InCell(Protocol):
    """Whatever belongs to a cell of the grid."""

    @property
    def cell(self) -> CellKey | None: ...


def names(rows: Sequence[Row]) -> Columns:
    """The variant; the runtime where it varies."""
    columns = [Column[Row]("variant", lambda row: escaped(row.variant), "left")]
    if len({row.engine for row in rows}) > 1:
        columns.append(Column("runtime", lambda row: escaped(row.engine), "left"))
    return columns


def cell_columns(rows: Sequence[InCell], *, always: bool = False) -> list[Column[InCell]]:
    """The parts of the cell that vary, or all of them."""
    parts: dict[str, Callable[[CellKey], int]] = {
        "prompt": lambda key: key.prompt_tokens,
        "new": lambda key: key.new_tokens,
        "batch": lambda key: key.batch_size,
    }
    keys = [row.cell for row in rows if row.cell]
    shown = {name: of for name, of in parts.items() if always or len(set(map(of, keys))) > 1}
    if any(key.depth for key in keys):
        shown["depth"] = lambda key: key.depth
    if any(key.text for key in keys):
        shown["text"] = lambda key: key.text + 1
    return [Column(name, _of_cell(of)) for name, of in shown.items()]


def _of_cell(of: Callable[[CellKey], int]) -> Callable[[InCell], str]:
    return lambda row: str(of(row.cell)) if row.cell else MISSING


def timing(rows: Sequence[Row]) -> Columns:
    """Latency and its parts. Where there is none, the first says why."""
    # tok/s is the latency turned over, so that one of the two spreads is enough.
    latency = Column[Row]("latency s", lambda row: _latency(row))
    spreads: list[tuple[str, Callable[[Row], object], Callable[[Row], str]]] = [
        ("TTFT ms", lambda row: row.ttft, lambda row: with_spread(row.ttft, scale=1e3)),
        ("TPOT ms", lambda row: row.tpot, lambda row: with_spread(row.tpot, scale=1e3)),
        ("tok/s", lambda row: row.rate, lambda row: with_spread(row.rate)),
    ]
    return [latency, *(Column(heading, text) for heading, of, text in spreads if any(of(row) for row in rows))]


def _latency(row: Row) -> str:
    return decimal(row.latency.value) if row.latency else status_words(row.status)


def speed_up(results: Results) -> Columns:
    """The ratio with its verdict, where there is something to compare with."""
    if results.baseline is None or len({row.variant for row in results.rows}) < 2:
        return []
    is_tested = any(row.ratio and row.ratio.low is not None for row in results.rows)

    def text(row: Row) -> str:
        if row.is_baseline:
            return "baseline"
        if row.ratio is None:
            return MISSING
        return f"{times(row.ratio)} {row.verdict}" if is_tested else times(row.ratio)

    return [Column("speed-up", text)]


def memory(rows: Sequence[Row]) -> Columns:
    """Peak while generating."""
    return _bytes(rows, "peak", lambda row: row.peak_memory_bytes)


def costs(rows: Sequence[Row]) -> Columns:
    """What a variant costs and is worth beyond its speed, as far as it is known."""
    return [
        *memory(rows),
        *_bytes(rows, "weights", lambda row: row.weight_bytes),
        *_numbers(rows, "bits/weight", lambda row: row.bits_per_weight, lambda bits: f"{bits:.2f}"),
        *_numbers(rows, "load s", lambda row: row.load_s, lambda load_s: decimal(load_s, digits=3)),
        *_setup(rows),
        *energy(rows),
        *_numbers(rows, "perplexity", lambda row: row.perplexity, decimal),
        *_divergence(rows),
        *_numbers(rows, "top-1 agreement", lambda row: row.top1_agreement, percent),
    ]


def _setup(rows: Sequence[Row]) -> Columns:
    """One time, or two where setting up was measured both with an empty compiler's cache and a filled one."""
    times = {"setup s": lambda row: row.setup_s}
    if any(row.setup_cold_s and row.setup_warm_s for row in rows):
        times = {
            "cold setup s": lambda row: row.setup_cold_s if row.setup_warm_s else row.setup_s,
            "warm setup s": lambda row: row.setup_warm_s,
        }
    return [
        column
        for heading, of in times.items()
        for column in _numbers(rows, heading, of, lambda setup_s: decimal(setup_s, digits=3))
    ]


def _numbers(
    rows: Sequence[Row], heading: str, of: Callable[[Row], float | None], form: Callable[[float], str]
) -> Columns:
    """A column, if any row knows its number."""
    if all(of(row) is None for row in rows):
        return []
    return [Column(heading, lambda row: MISSING if (number := of(row)) is None else form(number))]


def _divergence(rows: Sequence[Row]) -> Columns:
    if all(row.kl_divergence is None for row in rows):
        return []
    return [Column("KL divergence", _divergence_text)]


def _divergence_text(row: Row) -> str:
    """A word where it is not above the baseline's own."""
    if row.kl_divergence is None:
        return MISSING
    if row.quality and not row.quality.is_baseline and not row.quality.is_distinguishable:
        return INDISTINGUISHABLE
    return significant(row.kl_divergence, 3)


def _bytes(rows: Sequence[Row], name: str, of: Callable[[Row], int | None]) -> Columns:
    """In GiB; in MiB where all are small, as for a tiny model."""
    largest = max((size for row in rows if (size := of(row)) is not None), default=0)
    if largest < GIB / 20:
        return _numbers(rows, f"{name} MiB", of, lambda size: f"{size / MIB:.1f}")
    return _numbers(rows, f"{name} GiB", of, lambda size: f"{size / GIB:.2f}")


def energy(rows: Sequence[Row]) -> Columns:
    """Of the whole board; with its spread, which for energy is never small enough to leave out."""
    if not any(row.energy for row in rows):
        return []
    return [
        Column("J/token", lambda row: with_spread(row.energy.per_token if row.energy else None)),
        *_numbers(rows, "net J/token", lambda row: row.energy.net_per_token_j if row.energy else None, decimal),
        *_numbers(rows, "decode J/token", lambda row: row.energy.decode_per_token_j if row.energy else None, decimal),
        *_numbers(rows, "prefill J", lambda row: row.energy.prefill_j if row.energy else None, decimal),
    ]


def bound(rows: Sequence[Row]) -> Columns:
    if not any(row.bound_by for row in rows):
        return []
    return [Column("bound by", lambda row: escaped(row.bound_by) if row.bound_by else MISSING, "left")]
