"""How near each row came to what the hardware allows, and what it says in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarker.comparison.rows import CellKey
from benchmarker.comparison.words import cell_words
from benchmarker.core.numbers import decimal, percent
from benchmarker.core.stats import SAME_WITHIN
from benchmarker.core.tables import Column, Sheet, escaped
from benchmarker.core.units import MISSING
from benchmarker.report.presentation import LIMITS_TITLE
from benchmarker.workloads.generation.reading.best import peer_of
from benchmarker.workloads.generation.reading.columns import Columns, cell_columns, names
from benchmarker.workloads.generation.reading.rows import GenerationRow
from benchmarker.workloads.generation.roofline import MBU_LIMIT


def beside_limits(rows: Sequence[GenerationRow]) -> Sheet | None:
    """The table of rows beside their limits; None where no limit is known."""
    members = limited(rows)
    return Sheet(LIMITS_TITLE, limit_columns(members), members, (limit_caption(rows),)) if members else None


def limited(rows: Sequence[GenerationRow]) -> list[GenerationRow]:
    """The rows whose limits are known."""
    return [row for row in rows if row.floor_s is not None]


def limit_columns(rows: Sequence[GenerationRow]) -> Columns:
    """The columns of the table of limits, made of its rows."""
    columns: Columns = [
        *(cell_columns(rows) if len({row.cell for row in rows}) > 1 else []),
        *names(rows),
        _column("TPOT ms", lambda row: row.tpot.value * 1e3 if row.tpot else None, _number),
        _column("decode tok/s", lambda row: row.decode_tokens_per_s, _number, is_more_better=True),
        _column("floor ms", lambda row: row.floor_s * 1e3 if row.floor_s else None, _number),
        _column("MBU", lambda row: row.mbu, _share, is_more_better=True),
        _column("best", lambda row: row.best_ratio, _times, is_more_better=True),
        _column("reached", lambda row: row.best_ratio_reached, _share, is_more_better=True),
    ]
    if any(row.kernels_per_token is not None for row in rows):
        columns.append(_column("kernels/token", lambda row: row.kernels_per_token, _whole))
    if any(row.same_tokens is not None for row in rows):
        columns.append(Column("as eager", _agreement, sort=lambda row: row.same_tokens, is_more_better=True))
    return columns


def _column(
    heading: str,
    value_of: Callable[[GenerationRow], float | None],
    form: Callable[[float | None], str],
    *,
    is_more_better: bool = False,
) -> Column[GenerationRow]:
    return Column(heading, lambda row: form(value_of(row)), sort=value_of, is_more_better=is_more_better)


def limit_caption(rows: Sequence[GenerationRow]) -> str:
    """How to read the table of limits."""
    sentences = [
        "Decode tok/s: without the time to the first token. Floor: the least time that a token can take, from the "
        "bytes that it must read and the memory bandwidth measured in the same process (or its arithmetic, where that "
        "takes longer); MBU is the share of that bandwidth that was used."
    ]
    if any(row.best_ratio is not None for row in rows):
        sentences.append(
            "Best is the ratio of the floors at one bandwidth, and so the largest speed-up that the variant can have; "
            "reached is the share of it that it has against the baseline's quantization in the same engine."
        )
    if any(row.same_tokens is not None for row in rows):
        sentences.append("As eager: how many of the first greedy tokens are those of `generate`.")
    return " ".join(sentences)


def impossible(rows: Sequence[GenerationRow]) -> list[str]:
    """A line for each row that is faster than its memory allows."""
    return [
        f"{escaped(row.variant)} at {cell_words(row.cell)}: MBU {percent(row.mbu, places=0)}"
        + (
            ", because all that a token reads stays in the last cache: its memory is no limit for it."
            if row.fits_cache
            else " is impossible: an error of ours, in the bytes or in the bandwidth, and no speed. Please report it."
        )
        for row in rows
        if row.mbu is not None and row.mbu > MBU_LIMIT
    ]


def batch_words(rows: Sequence[GenerationRow], baseline: str | None) -> list[str]:
    """For each quantization, up to which batch size it is faster than the baseline's. Empty for one batch size."""
    bases = {row.cell: row for row in rows if row.variant == baseline}
    series: dict[tuple[str, CellKey], dict[int, float]] = {}
    peers: dict[tuple[str, CellKey], str] = {}
    for row in rows:
        peer = peer_of(row, bases[row.cell], rows) if row.cell and row.cell in bases else None
        if row.cell and peer and peer.latency and row.latency:
            place = row.variant, row.cell.without("batch_size")
            series.setdefault(place, {})[row.cell.batch_size] = peer.latency.value / row.latency.value
            peers[place] = peer.variant
    several = len({cell for _, cell in series}) > 1
    return [
        _stops(variant, peers[variant, cell], ratios) + (f" (prompt {_shape(cell)})." if several else ".")
        for (variant, cell), ratios in series.items()
        if len(ratios) > 1
    ]


def _stops(variant: str, peer: str, ratios: dict[int, float]) -> str:
    """`int8 stops being faster than fp16 between batch 4 (1.20x) and batch 8 (0.53x)`.

    Args:
        peer: The variant that it is compared with.
        ratios: Speed-up by batch size.
    """
    sizes = sorted(ratios)
    wins = [size for size in sizes if ratios[size] > 1 + SAME_WITHIN]
    name, peer_name = escaped(variant), escaped(peer)
    if not wins:
        best = max(sizes, key=ratios.__getitem__)
        return f"{name} is at no batch size faster than {peer_name}: at best {_at(best, ratios)}"
    if wins == sizes:
        ends = f"from {_at(sizes[0], ratios)} to {_at(sizes[-1], ratios)}"
        return f"{name} is faster than {peer_name} at every batch size, {ends}"
    if wins == sizes[: len(wins)]:
        after = sizes[len(wins)]
        return f"{name} stops being faster than {peer_name} between {_at(wins[-1], ratios)} and {_at(after, ratios)}"
    return f"{name} is faster than {peer_name} only at {', '.join(_at(size, ratios) for size in wins)}"


def _at(size: int, ratios: dict[int, float]) -> str:
    return f"batch {size} ({_times(ratios[size])})"


def _shape(cell: CellKey) -> str:
    depth = f", depth {cell.depth}" if cell.depth else ""
    return f"{cell.prompt_tokens}, {cell.new_tokens} new tokens{depth}"


def _agreement(row: GenerationRow) -> str:
    return MISSING if row.same_tokens is None else f"{row.same_tokens} of {len(row.first_tokens)}"


def _share(fraction: float | None) -> str:
    """`66 %`; a dash where it is not known."""
    return MISSING if fraction is None else percent(fraction, places=0)


def _times(ratio: float | None) -> str:
    return MISSING if ratio is None else f"{ratio:.2f}x"


def _whole(value: float | None) -> str:
    return MISSING if value is None else f"{value:.0f}"


def _number(value: float | None) -> str:
    return MISSING if value is None else decimal(value)
