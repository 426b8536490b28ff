"""Rows of text generation."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from benchmarker.comparison.rows import CellKey, Row
from benchmarker.core.formatting import MISSING, decimal
from benchmarker.core.stats import Estimate, estimate, geometric_mean
from benchmarker.core.tables import code, plain_line
from benchmarker.schema.quality import Quality, StepDivergence, TaskResult, change_text, kl_text
from benchmarker.schema.record import EnergyWindow, Moment
from benchmarker.workloads.generation.architecture import floor_s, mbu, prefill_mfu
from benchmarker.workloads.generation.record import (
    GenerationCell,
    GenerationDemand,
    GenerationRecord,
    is_unquantized,
    newest_check,
)

OWN_KERNELS = f"benchmarker's own kernels, which {code('benchmarker generate')} runs and no other program"
QUICK_QUALITY = code("--quality quick")
Good = Sequence[tuple[GenerationRecord, GenerationCell]]


DISTINCT = ("prompts", "distinct")
"""(axis, value) in the keys of cells whose batch has distinct prompts. All other keys do not have this axis."""


class GenerationKey(CellKey):
    """Key of a cell: the shape of a generation. `text` numbers the prompt texts of equal length, from 0."""

    @property
    def has_distinct_prompts(self) -> bool:
        return DISTINCT in self.pairs

    @property
    def words(self) -> str:
        """Text of the cell in a sentence: `prompt 26, 100 new tokens, batch 1`."""
        values = dict(self.pairs)
        new = "{} new token" if values.get("new_tokens") == 1 else "{} new tokens"
        shape = {"prompt_tokens": "prompt {}", "new_tokens": new, "batch_size": "batch {}"}
        words = [text.format(values[name]) for name, text in shape.items() if name in values]
        words += [f"depth {values['depth']}"] if values.get("depth") else []
        words += [f"text {values['text'] + 1}"] if values.get("text") else []
        words += ["distinct prompts"] if self.has_distinct_prompts else []
        return ", ".join(words)

    @property
    def size(self) -> float:
        return float(self.batch_size * (self.depth + self.prompt_tokens + self.new_tokens))

    @property
    def context(self) -> tuple[int, int, int, bool]:
        """Values of the axes on which the time of a decode step depends."""
        return self.batch_size, self.prompt_tokens, self.depth, self.has_distinct_prompts


ROUNDING_GAP = 0.05  # Difference of log-probabilities, in nats, below which rounding in 16 bits may swap two tokens.


@dataclass(frozen=True)
class FirstDifference:
    """First difference between the greedy texts of a row and those of the baseline."""

    prompts: int  # Number of compared texts.
    same: int  # Number of equal texts.
    token: int | None  # Earliest token that differs, counted from 1; None if all texts are equal.
    gap: float | None  # Largest gap, nats, between the two likeliest tokens' log-probabilities at a first difference.

    @property
    def verdict(self) -> str:
        if self.token is None:
            return "the same"
        if self.gap is None:
            return MISSING
        return "rounding" if self.gap <= ROUNDING_GAP else "more than rounding"


def first_difference(quality: Quality | None, baseline: Quality | None) -> FirstDifference | None:
    """Compare the greedy texts of two measurements of quality; None if their prompts differ or a text is missing."""
    if quality is None or baseline is None or quality.measured_on != baseline.measured_on:
        return None
    pairs = list(zip(quality.greedy, baseline.greedy, strict=False))
    if not pairs:
        return None
    places, gaps = [], []
    for text, standard in pairs:
        both = zip(text.tokens, standard.tokens, strict=False)
        place = next((number for number, (new, old) in enumerate(both) if new != old), None)
        if place is None:
            continue
        places.append(place)
        # Both engines read the same tokens before the first difference, so the gap of either engine is valid.
        gaps.append(next((measured.gaps[place] for measured in (standard, text) if measured.gaps), None))
    measured = [gap for gap in gaps if gap is not None]
    return FirstDifference(
        prompts=len(pairs),
        same=len(pairs) - len(places),
        token=min(places) + 1 if places else None,
        gap=max(measured) if measured and len(measured) == len(gaps) else None,
    )


ENERGY_CAPTION = (
    "J/token is the energy of the whole board by its driver's counter, over windows of at least 10 s, prefill "
    "included; net is above the idle board with the model loaded. It is not what the wall socket gives."
)


@dataclass(frozen=True)
class GenerationRow(Row):
    """One variant in one cell. `quality` is present even if it is not comparable with the baseline's."""

    model: str = ""
    weight_bytes: int | None = None
    working_bytes: int | None = None  # Peak memory on a GPU minus weights and reserved KV cache.
    reserved_kv_bytes: int | None = None  # Bytes that an external engine reserves for the KV cache of all cells.
    is_divided: bool = False  # True if every weight is divided among several GPUs, which measure no quality.
    bits_per_weight: float | None = None
    quantized_fraction: float | None = None  # Share of the parameters that are stored in fewer than 16 bits.
    weights: str = ""  # Quantization of weights, output layer and KV cache: `gptq lm_head=int8`.
    load_s: float | None = None
    setup_s: float | None = None
    setup_cold_s: float | None = None  # Seconds of set-up with empty compiler cache; `setup_warm_s`: filled cache.
    setup_warm_s: float | None = None
    mbu: float | None = None  # Required bytes of a decode step / (TPOT * memory bandwidth).
    fits_cache: bool = False  # True if all bytes of a step fit in the device's last-level cache.
    best_ratio: float | None = None  # Largest possible speed-up: baseline's floor / row's floor, with equal limits.
    share_of_best_ratio: float | None = None  # Speed-up of TPOT in the same engine / `best_ratio`.
    prefill_mfu: float | None = None
    kernels_per_token: float | None = None
    first_tokens: tuple[int, ...] = ()
    same_tokens: int | None = None
    """Number of leading tokens in common with the same quantization in the eager engine; None for the eager engine."""
    perplexity: float | None = None
    kl_divergence: float | None = None
    top1_agreement: float | None = None
    quality: Quality | None = None
    step_divergence: StepDivergence | None = None  # Divergence of the timed step from the variant's own forward pass.
    first_difference: FirstDifference | None = None
    """First difference between the row's greedy texts and the baseline's; None for the baseline."""
    tasks: tuple[TaskResult, ...] = ()
    tokens_in_common: int | None = None  # Number of leading tokens in common with the baseline.
    energy: EnergyUse | None = None

    @property
    def is_plain(self) -> bool:
        return is_unquantized(self.weights, self.quantized_fraction)

    @property
    def is_noise(self) -> bool:
        """True for the unquantized baseline: the divergence is that of the model from itself."""
        return self.quality is not None and self.quality.is_baseline

    @property
    def loss(self) -> float | None:
        return self.kl_divergence

    @property
    def variant_text(self) -> str:
        return f"{plain_line(self.label)} on the {plain_line(self.engine)} engine"

    @property
    def quality_text(self) -> str:
        """`KL divergence 0.0183 ± 0.0005, perplexity 17.59`, or the reason why the quality is unknown."""
        if self.quality and self.is_noise:
            return f"perplexity {decimal(self.quality.perplexity)}"
        if self.quality and self.kl_divergence is not None:
            return f"KL divergence {kl_text(self.quality)}, perplexity {change_text(self.quality)}"
        remedy = f"add {QUICK_QUALITY}{' on one GPU' if self.is_divided else ''}"
        return f"quality not measured: {'random weights' if self.has_random_weights else remedy}"

    def values(self) -> dict[str, Any]:
        from benchmarker.workloads.generation.reading.row_json import to_row

        return to_row(self)

    @property
    def quant(self) -> str:
        return self.form["quant"]

    @property
    def engine(self) -> str:
        return self.form["engine"]

    @property
    def ttft(self) -> Estimate | None:
        return self.metrics.get("ttft")

    @property
    def tpot(self) -> Estimate | None:
        return self.metrics.get("tpot")

    @property
    def decode_tokens_per_s(self) -> float | None:
        return self.cell.batch_size / self.tpot.value if self.cell and self.tpot else None

    @property
    def step_demand(self) -> GenerationDemand | None:
        return cast("GenerationDemand | None", self.demand)


def over_batches(rows: Sequence[GenerationRow]) -> list[GenerationRow]:
    """Return the rows. If batches with distinct prompts exist, add copies of the rows of batch 1 with `DISTINCT` in
    their key, so that batch 1 is the smallest of these batches."""
    if not any(row.cell and row.cell.has_distinct_prompts for row in rows):
        return list(rows)
    single = [(row, row.cell) for row in rows if row.cell and row.cell.batch_size == 1]
    return [*rows, *(replace(row, cell=replace(cell, pairs=(*cell.pairs, DISTINCT))) for row, cell in single)]


def make_generation_row(fields: dict[str, Any], records: Sequence[GenerationRecord], good: Good) -> GenerationRow:
    energy = energy_use(good)
    loads = [record.load for record in records if record.load]
    engines = [record.engine for record in records if record.engine]
    externals = [engine.external for engine in engines if engine.external]
    weights = [load.weight_bytes for load in loads] or [each.weight_bytes for each in externals if each.weight_bytes]
    weight_bytes = max(weights, default=None)
    peaks = [cell.memory.peak_allocated_bytes for _, cell in good if cell.memory.peak_allocated_bytes is not None]
    gpus = records[0].variant.gpus
    setups = [(engine.setup_cache, engine.setup_s) for engine in engines if engine.setup_s is not None]
    kernels = [count for record, cell in good if (count := _kernels_of(record, cell)) is not None]
    further = {
        "model": records[0].model.id,
        "weight_bytes": weight_bytes,
        "working_bytes": max(0, max(peaks) - weight_bytes) if peaks and weight_bytes and gpus == 1 else None,
        "reserved_kv_bytes": max((each.kv_cache_bytes for each in externals if each.kv_cache_bytes), default=None),
        "bits_per_weight": max((load.bits_per_weight for load in loads), default=None),
        "quantized_fraction": max((load.quantized_fraction for load in loads), default=None),
        "weights": records[0].stored_as,
        "load_s": _median([load.load_s for load in loads]),
        "setup_s": _median([setup_s for _, setup_s in setups]),
        "setup_cold_s": _median([setup_s for cache, setup_s in setups if cache == "cold"]),
        "setup_warm_s": _median([setup_s for cache, setup_s in setups if cache == "warm"]),
        "kernels_per_token": _median(kernels),
        "surroundings": records[0].variant.engine,
        "mixes_prefill": records[0].mixes_prefill and any(cell.batch_size > 1 for _, cell in good),
        "caption": ENERGY_CAPTION if energy else "",
        "is_divided": gpus > 1 and records[0].variant.split == "tensors",
        "has_random_weights": any(record.model.load_format == "dummy" for record in records),
        **_judged(records),
        "step_divergence": newest_check(records),
        "energy": energy,
        "mark": OWN_KERNELS if any(use.origin == "benchmarker" for e in engines for use in e.kernels_used) else "",
        "first_tokens": good[0][1].first_tokens if good else (),
        **(_limits(good) if good else {}),
    }
    return GenerationRow(**{**fields, **further})


def _judged(records: Sequence[GenerationRecord]) -> dict[str, Any]:
    newest = sorted(records, key=lambda record: record.started_at, reverse=True)
    tasks = next((record.tasks for record in newest if record.tasks), ())
    quality = next((record.quality for record in newest if record.quality), None)
    if quality is None:
        return {"tasks": tasks}
    return {
        "tasks": tasks,
        "perplexity": quality.perplexity,
        "kl_divergence": quality.against.kl_mean,
        "top1_agreement": quality.against.same_top,
        "quality": quality,
    }


def _kernels_of(record: GenerationRecord, cell: GenerationCell) -> float | None:
    is_last_good = record.last_good is not None and cell is record.cells[record.last_good]
    if record.engine and is_last_good and record.engine.kernels_per_token:
        return record.engine.kernels_per_token
    if cell.step:
        return cell.step.graph_kernels
    return record.engine.graph_kernels if record.engine and cell is record.cells[-1] else None


def _limits(good: Good) -> dict[str, Any]:
    pairs = [(record.limits, cell.demand, cell) for record, cell in good if record.limits and cell.demand]
    used, floors, prefills = [], [], []
    for limits, demand, cell in pairs:
        tpots = [sample.tpot_s for sample in cell.samples if sample.tpot_s is not None]
        ttfts = [sample.ttft_s for sample in cell.samples if sample.ttft_s is not None]
        floors.append(floor_s(demand, limits))
        used += [mbu(demand, limits, tpot_s=statistics.median(tpots))] if tpots else []
        prefills += [prefill_mfu(demand, limits, ttft_s=statistics.median(ttfts))] if ttfts else []
    return {
        "floor_s": geometric_mean(floors) if floors else None,
        "mbu": geometric_mean(used) if used else None,
        "prefill_mfu": geometric_mean(prefills) if prefills else None,
        "fits_cache": any(demand.step_bytes <= (limits.cache_bytes or 0) for limits, demand, _ in pairs),
    }


@dataclass(frozen=True)
class EnergyUse:
    """Energy of a row, over all its processes, in joules of the whole GPU board."""

    per_token: Estimate  # Joules per token, idle power included; interval from the measured windows.
    net_per_token_j: float | None  # Joules per token above the idle power.
    decode_per_token_j: float | None  # Joules per token of decoding alone, idle power included.
    prefill_j: float | None  # Joules of one prompt's prefill, idle power included.


def energy_use(good: Good) -> EnergyUse | None:
    """Return the energy of one row; None if no process measured it."""
    by_round: dict[Moment, list[float]] = defaultdict(list)
    windows, net, decode, prefill = [], [], [], []
    for record, cell, energy in ((record, cell, cell.energy) for record, cell in good if cell.energy):
        tokens = cell.new_tokens * cell.batch_size
        whole_j, seconds = _per_generation(energy.generation)
        by_round[record.moment].append(whole_j / tokens)
        windows += [window.energy_j / window.generations / tokens for window in energy.generation]
        if energy.idle_power_w:
            net.append((whole_j - energy.idle_power_w * seconds) / tokens)
        if energy.prefill:
            prefill_j, _ = _per_generation(energy.prefill)
            prefill.append(prefill_j / cell.batch_size)
            decode += [(whole_j - prefill_j) / (tokens - cell.batch_size)] if cell.new_tokens > 1 else []
    if not by_round:
        return None
    return EnergyUse(
        per_token=estimate([geometric_mean(by_round[number]) for number in sorted(by_round)], windows),
        net_per_token_j=_mean(net),
        decode_per_token_j=_mean(decode),
        prefill_j=_mean(prefill),
    )


def _per_generation(windows: Sequence[EnergyWindow]) -> tuple[float, float]:
    generations = sum(window.generations for window in windows)
    energy_j = sum(window.energy_j for window in windows)
    return energy_j / generations, sum(window.seconds for window in windows) / generations


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
