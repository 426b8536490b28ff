"""How records of text generation are compared: what must be equal, the baseline, and what a budget can limit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarker.comparison.comparing import PLAIN, SECONDS, SIZES, Limitable
from benchmarker.comparison.rows import CellKey
from benchmarker.core.formatting import decimal, gib, percent, seconds
from benchmarker.core.stats import Estimate
from benchmarker.core.tables import code
from benchmarker.schema.quality import SILENT_KL, Quality
from benchmarker.workloads.generation.reading.best import tokens_in_common, with_best
from benchmarker.workloads.generation.reading.first_difference import first_difference
from benchmarker.workloads.generation.reading.rows import GenerationKey, GenerationRow, stored_as
from benchmarker.workloads.generation.record import GenerationRecord, GenerationVariant

if TYPE_CHECKING:
    pass

BASELINE = "fp16"
PLAIN_ENGINE = "eager"


def keys(record: GenerationRecord) -> list[CellKey]:
    """The record's cells in their order."""
    counts: dict[tuple[int, int, int, int], int] = defaultdict(int)
    cell_keys: list[CellKey] = []
    for cell in record.cells:
        shape = cell.batch_size, cell.prompt_tokens, cell.new_tokens, cell.depth
        # Older records do not say which text it is: they are numbered in their order.
        pairs = (
            ("batch_size", cell.batch_size),
            ("prompt_tokens", cell.prompt_tokens),
            ("new_tokens", cell.new_tokens),
            ("text", counts[shape] if cell.text is None else cell.text),
            ("depth", cell.depth),
        )
        cell_keys.append(GenerationKey(pairs, record.workload))
        counts[shape] += 1
    return cell_keys


LATER_DEFAULTS = (("prefill", "plain"), ("lm_head", None), ("scales", "range"), ("kv_cache", None))
"""Options that older records lack, each with the value that they ran with."""


def form(record: GenerationRecord) -> dict[str, str]:
    """A variant's quantization, engine, options and type, by field."""
    both = {**record.variant.options, **record.variant.engine_options}
    options = ", ".join(f"{key}={value}" for key, value in sorted(both.items()) if (key, value) not in LATER_DEFAULTS)
    return {
        "quant": record.variant.quant,
        "engine": record.variant.engine,
        "options": options or "no options",
        "dtype": record.model.dtype,
        **gpus(record.variant),
    }


def gpus(variant: GenerationVariant) -> dict[str, str]:
    """How several GPUs shared the model, by field; nothing for one."""
    return {"gpus": f"{variant.gpus} by {variant.split}"} if variant.split else {}


def ran(record: GenerationRecord) -> dict[str, str | None]:
    """The kernel that a library chose, the kernels of the decode step and its attention, by field; None if unknown."""
    notes = [note for note in (record.load.notes if record.load else ()) if note.startswith("kernel ")]
    uses = record.engine.kernels_used if record.engine else ()
    return {
        "kernel": next(iter(notes), None),
        "kernels of the decode step": "; ".join(sorted(use.words() for use in uses)) or None,
        "attention": record.engine.attention if record.engine else None,
    }


def plainness(record: GenerationRecord) -> tuple[bool, ...]:
    """fp16 is the baseline, on the eager engine if it is there."""
    plain = is_plain(stored_as(record), record.load.quantized_fraction if record.load else None)
    return plain, plain and record.variant.engine == PLAIN_ENGINE


def is_plain(weights: str, quantized_fraction: float | None) -> bool:
    """Whether nothing is quantized. llama.cpp's forms, an output layer in int8 and a KV cache in fewer bits are options
    beside `fp16`.

    Args:
        weights: See `stored_as`.
    """
    return weights == BASELINE and not quantized_fraction


def with_baseline(rows: Sequence[GenerationRow], baseline: str | None) -> tuple[GenerationRow, ...]:
    """The rows, completed by what follows from the baseline's row.

    That is how many tokens their text has in common with the baseline's, where it first differs, the best speed-up that
    they can have, and which of their qualities do not compare with the baseline's: these are taken out.
    """
    texts = {row.cell: row.first_tokens for row in rows if row.variant == baseline}
    shared = [tokens_in_common(row.first_tokens, texts.get(row.cell, ())) for row in rows]
    texts_judged = next((row.quality for row in rows if row.variant == baseline and row.quality), None)
    beside = [
        replace(
            row,
            tokens_in_common=count,
            first_difference=None if row.variant == baseline else first_difference(row.quality, texts_judged),
        )
        for row, count in zip(rows, shared, strict=True)
    ]
    return comparable(with_best(beside, baseline))


def comparable(rows: Sequence[GenerationRow]) -> tuple[GenerationRow, ...]:
    """The rows without the perplexity, divergence and agreement that do not compare with the baseline's.

    Where the baseline was not judged, the first judged row stands for it. No table, chart or budget then compares
    what was measured on different texts or in different ways.
    """
    judged = [row for row in rows if row.quality]
    standard = next((row.quality for row in judged if row.is_baseline), judged[0].quality if judged else None)
    return tuple(_without_incomparable(row, standard) for row in rows)


def _without_incomparable(row: GenerationRow, standard: Quality | None) -> GenerationRow:
    """The row without the qualities that were measured differently from the standard."""
    if row.quality is None or standard is None:
        return row
    # A prefill is another computation than the step that is timed, and not the one that the row's speed is of.
    if row.quality.measured_on != standard.measured_on or row.quality.path != standard.path:
        return replace(row, perplexity=None, kl_divergence=None, top1_agreement=None)
    if row.quality.top_k != standard.top_k:
        # Only divergences depend on how many tokens were kept: as bounds, not as values.
        return replace(row, kl_divergence=None)
    return row


def _about(value: float | None, error: float | None) -> float | Estimate | None:
    """A mean over windows of text, with two standard errors to either side."""
    return value if value is None or not error else Estimate(value, value - 2 * error, value + 2 * error)


_TIMING = f"{code('benchmarker run')} measures it"
_QUALITY = f"{code('--quality')} measures it, on real weights"
LIMITABLE: Mapping[str, Limitable] = {
    "weights": Limitable(lambda row: row.weight_bytes, SIZES, gib, _TIMING),
    "bits": Limitable(lambda row: row.bits_per_weight, PLAIN, decimal, _TIMING),
    "load": Limitable(lambda row: row.load_s, SECONDS, seconds, _TIMING),
    "setup": Limitable(lambda row: row.setup_s, SECONDS, seconds, "only runtimes that set something up have it"),
    "energy": Limitable(
        lambda row: row.energy.per_token if row.energy else None,
        {"": 1.0, "j": 1.0},
        decimal,
        f"{code('--energy')} measures it",
    ),
    "perplexity": Limitable(
        lambda row: _about(row.perplexity, row.quality.perplexity_error if row.quality else None),
        PLAIN,
        decimal,
        _QUALITY,
    ),
    "kld": Limitable(
        lambda row: _about(row.kl_divergence, row.quality.against.kl_mean_error if row.quality else None),
        PLAIN,
        decimal,
        _QUALITY,
        f"(kld bounds how much the predictions move, not harm; below {SILENT_KL} it does not rank forms: use tasks.)",
    ),
    "top1": Limitable(
        lambda row: _about(row.top1_agreement, row.quality.against.same_top_error if row.quality else None),
        PLAIN,
        lambda share: percent(share, places=1),
        _QUALITY,
    ),
}
