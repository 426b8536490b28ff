"""Tables of the device's limits and of the timed step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarker.comparison.rows import cell_words, listed
from benchmarker.core.formatting import MISSING, decimal, percent, significant
from benchmarker.core.tables import Column, Sheet, code, plain_line
from benchmarker.report.columns import LIMITS_TITLE, names
from benchmarker.schema.quality import ENGINE_STEP_WRONG, STEP_FACTOR, STEP_ROUNDING, STEP_WRONG, StepDivergence
from benchmarker.workloads.generation.demand import MBU_LIMIT
from benchmarker.workloads.generation.reading.generation_rows import GenerationRow
from benchmarker.workloads.generation.reading.generation_tables import Columns, cell_columns


def beside_limits(rows: Sequence[GenerationRow]) -> Sheet | None:
    """Return the table of rows beside their limits; None without limits."""
    members = limited(rows)
    return Sheet(LIMITS_TITLE, limit_columns(members), members, (limit_caption(rows),)) if members else None


def limited(rows: Sequence[GenerationRow]) -> list[GenerationRow]:
    """Return the rows with known limits."""
    return [row for row in rows if row.floor_s is not None]


def limit_columns(rows: Sequence[GenerationRow]) -> Columns:
    """Return the columns of the table of limits."""
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
    """Return how to read the table of limits."""
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
        sentences.append(f"As eager: how many of the first greedy tokens are those of {code('generate')}.")
    return " ".join(sentences)


def impossible(rows: Sequence[GenerationRow]) -> list[str]:
    """Return a line for each row that is faster than its memory allows."""
    return [
        f"{plain_line(row.variant)} at {cell_words(row.cell)}: MBU {percent(row.mbu, places=0)}"
        + (
            ", because all that a token reads stays in the last cache: its memory is no limit for it."
            if row.fits_cache
            else " is impossible: an error of ours, in the bytes or in the bandwidth, and no speed. Please report it."
        )
        for row in rows
        if row.mbu is not None and row.mbu > MBU_LIMIT
    ]


def _agreement(row: GenerationRow) -> str:
    return MISSING if row.same_tokens is None else f"{row.same_tokens} of {len(row.first_tokens)}"


def _share(fraction: float | None) -> str:
    return MISSING if fraction is None else percent(fraction, places=0)


def _times(ratio: float | None) -> str:
    return MISSING if ratio is None else f"{ratio:.2f}x"


def _whole(value: float | None) -> str:
    return MISSING if value is None else f"{value:.0f}"


def _number(value: float | None) -> str:
    return MISSING if value is None else decimal(value)


VERDICTS = {
    "equal": "rounding",
    "differs": "more than rounding",
    "wrong": "another computation",
    "cache": "the quantized KV cache",
}


ELSEWHERE = (
    "An engine in a process of its own is held against its own prefill, whose kernels may round otherwise than its "
    f"step's: the limit is {ENGINE_STEP_WRONG} there."
)


def step_columns(rows: Sequence[GenerationRow]) -> list[Column[GenerationRow]]:
    """Return the columns of the table of the timed step; none without a check."""
    if not any(row.step_divergence for row in rows):
        return []
    return [
        Column[GenerationRow]("variant", lambda row: row.variant, "left"),
        Column[GenerationRow]("KL step/eager", _of(lambda checked: significant(checked.kl_mean, 3))),
        Column[GenerationRow]("uncaptured", _of(_plain)),
        Column[GenerationRow]("max", _of(lambda checked: significant(checked.kl_max, 3))),
        Column[GenerationRow]("same top", _of(lambda checked: percent(checked.same_top, places=1))),
        Column[GenerationRow]("steps", _of(lambda checked: str(checked.steps))),
        Column[GenerationRow]("it is", _of(lambda checked: VERDICTS[checked.verdict]), "left"),
    ]


def step_caption(rows: Sequence[GenerationRow]) -> str:
    """Return how to read the table; empty without a check."""
    checked = [row for row in rows if row.step_divergence]
    if not checked:
        return ""
    unchecked = list(dict.fromkeys(row.variant for row in rows if not row.step_divergence and row.status == "ok"))
    sentences = [
        "KL step/eager is how far the predictions of the decode step that was timed are from those of the same form's "
        "own forward, in nats a token, on a text that both are given; uncaptured is the same of the libraries' own "
        f"step. Rounding is up to {STEP_ROUNDING} or {STEP_FACTOR} times the uncaptured step's; above {STEP_WRONG} the "
        "row has no speed.",
        *([ELSEWHERE] if any(row.step_divergence and row.step_divergence.of_engine for row in checked) else []),
        *([f"Not checked: {listed(unchecked)}."] if unchecked else []),
    ]
    return " ".join(sentences)


def _plain(checked: StepDivergence) -> str:
    return MISSING if checked.plain_kl_mean is None else significant(checked.plain_kl_mean, 3)


def _of(text: Callable[[StepDivergence], str]) -> Callable[[GenerationRow], str]:
    return lambda row: text(row.step_divergence) if row.step_divergence else MISSING
