"""What a report shows: one row per variant and cell, and the plain form of it that a program reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from benchmarker.comparison.energy import EnergyUse
from benchmarker.core.stats import Estimate, Ratio
from benchmarker.schema.quality import Quality, TaskResult
from benchmarker.schema.record import Flag, Moment
from benchmarker.schema.roofline import Limits
from benchmarker.workloads.generation.record import GenerationDemand, GenerationRecord

Context = tuple[int, int, int]
"""Batch, prompt and depth."""


@dataclass(frozen=True, order=True)
class CellKey:
    """Which cell of the grid, in the order of the tables."""

    batch_size: int
    prompt_tokens: int
    new_tokens: int
    text: int = 0
    """Prompt texts may be equally long: the second of a shape is 1."""
    depth: int = 0
    """Tokens in the cache before the prompt."""

    @property
    def context(self) -> Context:
        """What a decode step works on, whatever number of tokens follow."""
        return self.batch_size, self.prompt_tokens, self.depth


class Failure(NamedTuple):
    """One process that gave no number although others of the row did."""

    round: int
    status: str
    reason: str | None
    is_repeated: bool
    """Whether another process of the same round did give one."""


@dataclass(frozen=True)
class Row:
    """One variant in one cell, over all its processes. None is not known."""

    variant: str
    quant: str
    runtime: str
    model: str
    device: str
    cell: CellKey | None
    """None where the run failed before any cell was known."""
    status: str
    """Of the cell: ok, or why there is no number. `failed` and `not measured` are the run's."""
    reason: str | None = None
    latency: Estimate | None = None
    """Seconds, as the next two."""
    ttft: Estimate | None = None
    tpot: Estimate | None = None
    rate: Estimate | None = None
    """New tokens a second of the whole batch, end to end."""
    latency_by_round: dict[Moment, float] = field(default_factory=dict)
    decode_tokens_per_s: float | None = None
    peak_memory_bytes: int | None = None
    """Live tensors on a GPU, resident memory on CPU; the largest of all processes."""
    weight_bytes: int | None = None
    bits_per_weight: float | None = None
    load_s: float | None = None
    setup_s: float | None = None
    ratio: Ratio | None = None
    """Speed-up against the baseline."""
    verdict: str | None = None
    """`baseline` for the baseline itself."""
    setup_cold_s: float | None = None
    """Setting up with the compiler's cache empty; the next with it filled."""
    setup_warm_s: float | None = None
    mbu: float | None = None
    """Share of the memory's bandwidth that decoding used for what it must read."""
    floor_s: float | None = None
    """The least time that a token can take on this device."""
    fits_cache: bool = False
    """Whether all that a step reads stays in the device's last cache."""
    demand: GenerationDemand | None = None
    limits: Limits | None = None
    """As the first of the processes measured them; the floor and the MBU are from each one's own."""
    best_ratio: float | None = None
    """The largest speed-up against the baseline that there can be: the ratio of their floors on the same limits."""
    best_ratio_reached: float | None = None
    """Share of it that was reached against the baseline's quantization in the same runtime."""
    prefill_mfu: float | None = None
    kernels_per_token: float | None = None
    first_tokens: tuple[int, ...] = ()
    """The first new tokens, at most 64."""
    same_tokens: int | None = None
    """Leading tokens that are those of the same quantization in the eager runtime; None for that itself."""
    bound_by: str | None = None
    perplexity: float | None = None
    kl_divergence: float | None = None
    top1_agreement: float | None = None
    """These three only where they compare with the other rows': see `Results`."""
    quality: Quality | None = None
    """Where they are from, and more."""
    tasks: tuple[TaskResult, ...] = ()
    tokens_in_common: int | None = None
    """Leading tokens that are those of the baseline variant."""
    energy: EnergyUse | None = None
    rounds: int = 0
    processes: int = 0
    """More than the rounds where single runs were repeated."""
    runs: int = 0
    """Timed repeats in all."""
    clock_mhz: float | None = None
    """Median clock of the compute units while timing, where a driver said."""
    dummy_weights: bool = False
    flags: tuple[Flag, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def tokens_compared(self) -> int:
        """Of how many `tokens_in_common` are."""
        return len(self.first_tokens)

    @property
    def is_baseline(self) -> bool:
        return self.verdict == "baseline"


def with_bound(row: Row, bounds: Mapping[tuple[str, Context], str]) -> Row:
    """The row with what it is bound by, where a generation of its variant over the same context was profiled."""
    if row.cell is None or row.status != "ok":
        return row
    return replace(row, bound_by=bounds.get((row.variant, row.cell.context)))


@dataclass(frozen=True)
class Results:
    """Rows with the records that they come from: all that a report shows.

    Perplexity, KL divergence and top-1 agreement are taken out of rows where they do not compare with the baseline's
    (or with the first row's, where the baseline was not judged), so that no table, chart or budget holds them against
    each other. `Row.quality` keeps them.
    """

    rows: tuple[Row, ...]
    """Cell by cell, the variants in one order in each."""
    records: tuple[GenerationRecord, ...]
    baseline: str | None = None
    """Name of the variant that speed-ups are against; None where there are none."""
    differences: tuple[str, ...] = ()
    """What differs between records that --force compared all the same."""
    problems: tuple[str, ...] = ()
    """Files that were left out."""
    reasons: tuple[str, ...] = ()
    """Why each variant is as fast as it is, as markdown; empty where nothing was profiled."""
    members: dict[str, tuple[GenerationRecord, ...]] = field(default_factory=dict)
    """The records of each variant, under the name that the rows give it."""

    def __post_init__(self) -> None:
        # Only all rows together tell what compares.
        object.__setattr__(self, "rows", _comparable(self.rows))


def _comparable(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    judged = [row for row in rows if row.quality]
    standard = next((row.quality for row in judged if row.is_baseline), judged[0].quality if judged else None)
    return tuple(_beside(row, standard) for row in rows)


def _beside(row: Row, standard: Quality | None) -> Row:
    """The row with no quality that was measured otherwise than this."""
    if row.quality is None or standard is None:
        return row
    if row.quality.measured_on != standard.measured_on:
        return replace(row, perplexity=None, kl_divergence=None, top1_agreement=None)
    if row.quality.top_k != standard.top_k:
        # Only divergences depend on how many tokens were kept: as bounds, not as values.
        return replace(row, kl_divergence=None)
    return row


def to_row(row: Row) -> dict[str, Any]:
    """Plain values for a program, in base units; null for what is not known.

    The details of quality are there only where it was measured.
    """
    cell, ratio, energy = row.cell, row.ratio, row.energy
    return {
        "variant": row.variant,
        "quant": row.quant,
        "runtime": row.runtime,
        "model": row.model,
        "device": row.device,
        "prompt_tokens": cell.prompt_tokens if cell else None,
        "new_tokens": cell.new_tokens if cell else None,
        "batch_size": cell.batch_size if cell else None,
        "depth": cell.depth if cell else None,
        "status": row.status,
        "latency_s": _value(row.latency),
        "ttft_s": _value(row.ttft),
        "tpot_s": _value(row.tpot),
        "tokens_per_s": _value(row.rate),
        "decode_tokens_per_s": row.decode_tokens_per_s,
        "peak_memory_bytes": row.peak_memory_bytes,
        "weight_bytes": row.weight_bytes,
        "bits_per_weight": row.bits_per_weight,
        "load_s": row.load_s,
        "setup_s": row.setup_s,
        "setup_cold_s": row.setup_cold_s,
        "setup_warm_s": row.setup_warm_s,
        "mbu": row.mbu,
        "floor_s": row.floor_s,
        "best_ratio": row.best_ratio,
        "best_ratio_reached": row.best_ratio_reached,
        "prefill_mfu": row.prefill_mfu,
        "kernels_per_token": row.kernels_per_token,
        "same_tokens": row.same_tokens,
        "ratio": ratio.value if ratio else None,
        "ratio_low": ratio.low if ratio else None,
        "ratio_high": ratio.high if ratio else None,
        "verdict": row.verdict,
        "bound_by": row.bound_by,
        **(_details(row.quality) if row.quality else dict.fromkeys(("perplexity", "kl_divergence", "top1_agreement"))),
        "tokens_in_common": row.tokens_in_common,
        "energy_per_token_j": energy.per_token.value if energy else None,
        "energy_net_per_token_j": energy.net_per_token_j if energy else None,
        "energy_decode_per_token_j": energy.decode_per_token_j if energy else None,
        "energy_prefill_j": energy.prefill_j if energy else None,
        "rounds": row.rounds,
        "runs": row.runs,
        "dummy_weights": row.dummy_weights,
        "flags": list(row.flags),
    }


def _details(quality: Quality) -> dict[str, Any]:
    against = quality.against
    return {
        "perplexity": quality.perplexity,
        "kl_divergence": against.kl_mean,
        "kl_divergence_error": against.kl_mean_error,
        "kl_divergence_median": against.kl_median,
        "kl_divergence_90": against.kl_90,
        "kl_divergence_99": against.kl_99,
        "kl_divergence_max": against.kl_max,
        "kl_divergence_noise": quality.noise.kl_mean,
        "ln_ratio": against.ln_ratio,
        "ln_ratio_error": against.ln_ratio_error,
        "top1_agreement": against.same_top,
        "text_sha256": quality.text_sha256,
        "quality_size": quality.size,
        "quality_top_k": quality.top_k,
    }


def _value(measured: Estimate | None) -> float | None:
    return measured.value if measured else None
