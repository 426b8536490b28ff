"""Keys of cells, comparison of rows with the baseline's row, and the quantities that a budget can limit."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

from benchmarker.comparison.recommend import TIMING
from benchmarker.comparison.rows import SECONDS, SIZES, UNITLESS, CellKey, Limitable
from benchmarker.core.formatting import decimal, gib, percent, seconds
from benchmarker.core.stats import Estimate
from benchmarker.core.tables import code, plain_line
from benchmarker.schema.quality import SILENT_KL, Quality
from benchmarker.workloads.generation.architecture import floor_s
from benchmarker.workloads.generation.reading.generation_rows import (
    DISTINCT,
    GenerationKey,
    GenerationRow,
    first_difference,
)
from benchmarker.workloads.generation.record import GenerationRecord


def keys(record: GenerationRecord) -> list[CellKey]:
    counts: dict[tuple[int, ...], int] = defaultdict(int)
    cell_keys: list[CellKey] = []
    for cell in record.cells:
        shape = cell.batch_size, cell.prompt_tokens, cell.new_tokens, cell.depth, cell.distinct_prompts > 1
        # Older records have no `text`: cells of equal shape are then numbered in the record's order.
        pairs = (
            ("batch_size", cell.batch_size),
            ("prompt_tokens", cell.prompt_tokens),
            ("new_tokens", cell.new_tokens),
            ("text", counts[shape] if cell.text is None else cell.text),
            ("depth", cell.depth),
            *([DISTINCT] if cell.distinct_prompts > 1 else []),
        )
        cell_keys.append(GenerationKey(pairs, record.workload))
        counts[shape] += 1
    return cell_keys


def with_baseline(rows: Sequence[GenerationRow], baseline: str | None) -> tuple[GenerationRow, ...]:
    """Return the rows, with the values added that depend on the baseline's row.

    Perplexities and divergences are removed if they were measured differently from the baseline's. If the baseline's
    quality was not measured, the first measured quality replaces it.
    """
    bases = {row.cell: row for row in rows if row.variant == baseline}
    judged = [row for row in rows if row.quality]
    base_quality = next((row.quality for row in judged if row.variant == baseline), None)
    standard = base_quality or (judged[0].quality if judged else None)
    beside = (_beside(row, bases[row.cell], rows, base_quality) for row in rows)
    return tuple(_with_noise_floor(_without_incomparable(row, standard), judged) for row in beside)


def _beside(
    row: GenerationRow, base: GenerationRow, rows: Sequence[GenerationRow], base_quality: Quality | None
) -> GenerationRow:
    """Return the row, its texts compared with those of the baseline and the eager engine, and its largest speed-up."""
    eager = _row_of(rows, row.cell, weights=row.weights, engine="eager")
    texts = replace(
        row,
        tokens_in_common=greedy_tokens_in_common(row.first_tokens, base.first_tokens),
        first_difference=None if row is base else first_difference(row.quality, base_quality),
        same_tokens=None
        if eager is None or eager is row
        else greedy_tokens_in_common(row.first_tokens, eager.first_tokens),
    )
    if row.step_demand is None or base.step_demand is None or base.limits is None or row is base:
        return texts
    # Both floors use the baseline's limits: two measurements of one bandwidth differ, but not because of the variants.
    best = floor_s(base.step_demand, base.limits) / floor_s(row.step_demand, base.limits)
    peer = peer_of(row, base, rows)
    reached = peer.tpot.value / row.tpot.value / best if peer and peer.tpot and row.tpot else None
    return replace(texts, best_ratio=best, share_of_best_ratio=reached)


def _with_noise_floor(row: GenerationRow, judged: Sequence[GenerationRow]) -> GenerationRow:
    """Return the row with the largest noise: of its record, or of the unquantized model's step in the same engine."""
    if row.quality is None:
        return row
    same = [each.quality for each in judged if each.is_noise and each.quality and each.engine == row.engine]
    noises = [each.against for each in same if _scored_like(each, row.quality)]
    noise = max([row.quality.noise, *noises], key=lambda divergence: divergence.kl_mean)
    return replace(row, quality=row.quality.model_copy(update={"noise": noise}))


def _scored_like(quality: Quality, reference: Quality) -> bool:
    # Quality of a prefill is not comparable with quality of a decode step, the computation that is timed.
    return (quality.measured_on, quality.path) == (reference.measured_on, reference.path)


def _without_incomparable(row: GenerationRow, standard: Quality | None) -> GenerationRow:
    if row.quality is None or standard is None:
        return row
    if not _scored_like(row.quality, standard):
        return replace(row, perplexity=None, kl_divergence=None, top1_agreement=None)
    if row.quality.top_k != standard.top_k:
        # Divergences depend on the number of likeliest tokens that are compared; perplexities do not.
        return replace(row, kl_divergence=None)
    return row


def _of_quality(
    field: str, error_field: str, units: Mapping[str, float], form: Callable[[float], str], meaning: str = ""
) -> Limitable:
    """Return a limitable quantity: the row's `field`, +- two standard errors (`error_field` of `Quality`)."""

    def value(row: GenerationRow) -> float | Estimate | None:
        measured = getattr(row, field)
        error = attrgetter(error_field)(row.quality) if row.quality and measured is not None else None
        return Estimate(measured, measured - 2 * error, measured + 2 * error) if error else measured

    longer_text = f"a longer text ({code('--quality full')})"
    return Limitable(value, units, form, f"{code('--quality')} measures it, on real weights", longer_text, meaning)


LIMITABLE: Mapping[str, Limitable] = {
    "weights": Limitable(lambda row: row.weight_bytes, SIZES, gib, TIMING),
    "bits": Limitable(lambda row: row.bits_per_weight, UNITLESS, decimal, TIMING),
    "load": Limitable(lambda row: row.load_s, SECONDS, seconds, TIMING),
    "setup": Limitable(lambda row: row.setup_s, SECONDS, seconds, "only runtimes that set something up have it"),
    "energy": Limitable(
        lambda row: row.energy.per_token if row.energy else None,
        {"": 1.0, "j": 1.0},
        decimal,
        f"{code('--energy')} measures it",
    ),
    "perplexity": _of_quality("perplexity", "perplexity_error", UNITLESS, decimal),
    "kld": _of_quality(
        "kl_divergence",
        "against.kl_mean_error",
        UNITLESS,
        decimal,
        f"(kld bounds how much the predictions move, not harm; below {SILENT_KL} it does not rank forms: use tasks.)",
    ),
    "top1": _of_quality(
        "top1_agreement", "against.same_top_error", {**UNITLESS, "%": 0.01}, partial(percent, places=1)
    ),
}


def peer_of(row: GenerationRow, base: GenerationRow, rows: Sequence[GenerationRow]) -> GenerationRow | None:
    """Return the row with the baseline's quantization in `row`'s cell and engine; None if absent or `row` itself."""
    if row.weights == base.weights:
        return None
    if row.engine == base.engine:
        return base
    return _row_of(rows, row.cell, weights=base.weights, engine=row.engine)


def _row_of(rows: Sequence[GenerationRow], cell: CellKey | None, *, weights: str, engine: str) -> GenerationRow | None:
    return next((row for row in rows if (row.cell, row.weights, row.engine) == (cell, weights, engine)), None)


def greedy_tokens_in_common(first: Sequence[int], second: Sequence[int]) -> int | None:
    """Return the number of equal leading tokens of two texts; None if a text is empty."""
    if not first or not second:
        return None
    shorter = min(len(first), len(second))
    return next((place for place in range(shorter) if first[place] != second[place]), shorter)


FORM_WORDS = re.compile(
    r"gptq|gptqmodel|awq|hqq|autoround|bnb|nf4|fp8|quantized|sym|int[48]|[48]|[48]?bits?|w\d+a\d+|g?(32|64|128)",
    re.IGNORECASE,
)
"""Words that may follow the model's name in the name of a quantized checkpoint: Qwen3-4B-AWQ-4bit."""


def model_names(records: Sequence[GenerationRecord]) -> dict[str, str]:
    """Map model names to common names: models with equal files share one, a quantized checkpoint gets its base's."""
    by_files: dict[str, str] = {}
    common: dict[str, str] = {}
    for record in records:
        name, files = record.model.id, record.model.files_sha256
        common.setdefault(name, name)
        if files:
            common[name] = by_files.setdefault(files, name)
    for name in common:
        base = next((other for other in common if _is_checkpoint_of(name, other, records)), None)
        if base:
            common[name] = common[base]
    return common


def checkpoint_notes(records: Sequence[GenerationRecord]) -> list[str]:
    """Return a line for each model that was recognized as a quantized checkpoint of another model."""
    names = list(dict.fromkeys(record.model.id for record in records))
    return [
        f"{plain_line(name)} is taken for a quantized checkpoint of {plain_line(base)}, by its name and its shapes."
        for name in names
        for base in names
        if _is_checkpoint_of(name, base, records)
    ]


def _is_checkpoint_of(name: str, base: str, records: Sequence[GenerationRecord]) -> bool:
    last, base_last = (text.rstrip("/").rsplit("/", 1)[-1] for text in (name, base))
    words = [word for word in re.split(r"[-_.]+", last[len(base_last) :]) if word]
    if not last.lower().startswith(base_last.lower()) or not words or not all(map(FORM_WORDS.fullmatch, words)):
        return False
    own, others = ([record for record in records if record.model.id == each and record.load] for each in (name, base))
    shapes = {record.model.config_sha256 for record in (*own, *others)}
    is_quantized = all(record.load and record.load.quantized_fraction > 0 for record in own)
    return bool(own and others) and is_quantized and len(shapes) == 1 and None not in shapes
