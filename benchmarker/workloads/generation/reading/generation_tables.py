"""Columns of text generation's tables, and the command of `benchmarker generate`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from benchmarker.comparison.rows import CellKey, headline, shown_value
from benchmarker.core.formatting import MISSING, decimal, gib, percent, seconds, significant, with_spread
from benchmarker.core.tables import Column, plain_line
from benchmarker.report.caveats import each, in_brackets, machine_lines
from benchmarker.report.columns import (
    InCell,
    axis_column,
    byte_columns,
    estimate_columns,
    measured_text,
    memory,
    metric_column,
    number_columns,
)
from benchmarker.schema.base import Scalar
from benchmarker.schema.model import LoadFacts
from benchmarker.schema.quality import INDISTINGUISHABLE
from benchmarker.schema.record import status_words
from benchmarker.workloads.generation.generation_job import chosen_options, runs_in_generate
from benchmarker.workloads.generation.reading.generation_rows import GenerationRow
from benchmarker.workloads.generation.record import NO_TOKENIZER, GenerationRecord

Columns = list[Column[GenerationRow]]
SHOWN_ELSEWHERE = ("latency", "decode")
"""Metrics that `timing_columns` leaves out: latency has a special column, and the ranking metric is added elsewhere."""


def cell_columns(rows: Sequence[InCell], *, always: bool = False) -> list[Column[InCell]]:
    """Return a column for each axis that varies; with `always`, also prompt, new tokens and batch."""
    keys = [row.cell for row in rows if row.cell]
    axes = {"prompt": "prompt_tokens", "new": "new_tokens", "batch": "batch_size"}
    getters: dict[str, Callable[[CellKey], int]] = {name: itemgetter(axis) for name, axis in axes.items()}
    varying = {name: value_of for name, value_of in getters.items() if always or len(set(map(value_of, keys))) > 1}
    if any(key.depth for key in keys):
        varying["depth"] = lambda key: key.depth
    if any(key.text for key in keys):
        varying["text"] = lambda key: key.text + 1
    columns = [axis_column(name, value_of) for name, value_of in varying.items()]
    if len({key.has_distinct_prompts for key in keys if key.batch_size > 1}) > 1:
        columns.append(Column("prompts", _prompts, "left"))
    return columns


def _prompts(row: InCell) -> str:
    if row.cell is None or row.cell.batch_size == 1:
        return MISSING
    return "distinct" if row.cell.has_distinct_prompts else "same"


def timing(rows: Sequence[GenerationRow]) -> Columns:
    def text(row: GenerationRow) -> str:
        return measured_text(row, row.latency, scale=1) if row.latency else status_words(row.status)

    # This column has no spread: tok/s is new_tokens / latency, and the column of tok/s shows the spread.
    latency = Column[GenerationRow]("latency s", text, sort=lambda row: shown_value(row.latency))
    declared = rows[0].described.metrics if rows else ()
    metrics = (metric for metric in declared if metric.name not in SHOWN_ELSEWHERE and not metric.of_cell)
    return [latency, *(metric_column(metric) for metric in metrics if any(metric.name in row.metrics for row in rows))]


def costs(rows: Sequence[GenerationRow], *, whole: bool = False) -> Columns:
    """Return the columns of costs; if `whole`, of memory, and of energy if a cell outside the first table has it."""
    if whole:
        cell = headline(rows)
        return [*memory(rows), *(energy(rows) if any(row.energy and row.cell != cell for row in rows) else [])]
    return [
        *memory(rows),
        *byte_columns(rows, "weights", lambda row: row.weight_bytes),
        *_reserved(rows),
        *number_columns(rows, "bits/weight", lambda row: row.bits_per_weight, lambda bits: f"{bits:.2f}"),
        *number_columns(rows, "load s", lambda row: row.load_s, lambda load_s: decimal(load_s, digits=3)),
        *_setup(rows),
        *energy(rows),
        *number_columns(rows, "perplexity", lambda row: row.perplexity, decimal),
        *_divergence(rows),
        *number_columns(rows, "top-1 agreement", lambda row: None if row.is_noise else row.top1_agreement, percent),
    ]


def _reserved(rows: Sequence[GenerationRow]) -> Columns:
    if not any(row.reserved_kv_bytes for row in rows):
        return []
    return [
        *byte_columns(rows, "working", lambda row: row.working_bytes),
        *byte_columns(rows, "reserved KV", lambda row: row.reserved_kv_bytes),
    ]


def _setup(rows: Sequence[GenerationRow]) -> Columns:
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
    def text(row: GenerationRow) -> str:
        if row.kl_divergence is None or row.is_noise:
            return MISSING
        if row.quality and not row.quality.is_distinguishable:
            return INDISTINGUISHABLE
        return significant(row.kl_divergence, 3)

    has_divergence = any(row.kl_divergence is not None for row in rows)
    return [Column("KL divergence", text, sort=lambda row: row.kl_divergence)] if has_divergence else []


def brief(rows: Sequence[GenerationRow]) -> tuple[Columns, Columns]:
    steps = estimate_columns(rows, "tok/step", lambda row: row.metrics.get("tok/step"), scale=1)
    divergence = [replace(column, heading="KL", help="KL divergence, nats a token") for column in _divergence(rows)]
    return [*estimate_columns(rows, "TTFT ms", lambda row: row.ttft, scale=1e3), *steps], divergence


def energy(rows: Sequence[GenerationRow]) -> Columns:
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


def header(records: Sequence[GenerationRecord], *, is_run: bool = False) -> list[str]:
    variant = records[0].variant
    models = each(records, lambda record: record.model.id)
    revisions = each(records, lambda record: (record.model.revision or "")[:12])
    types = each(records, lambda record: record.model.dtype)
    dummies = [record.model.load_format == "dummy" for record in records]
    weights = "dummy weights" if all(dummies) else "some dummy weights" if any(dummies) else ""
    return [
        *([f"variant: {plain_line(variant.name)}, engine {plain_line(variant.engine)}"] if is_run else []),
        f"model: {models}{in_brackets(types, revisions and f'revision {revisions}', weights)}",
        *machine_lines(records),
        *(_load_lines(records[0].load) if is_run and records[0].load else []),
    ]


def _load_lines(load: LoadFacts) -> list[str]:
    tied = "tied to the embedding" if load.lm_head_tied else "not tied"
    each = f"; on the GPUs {', '.join(map(gib, load.per_gpu_bytes))}" if load.per_gpu_bytes else ""
    return [
        f"weights: {gib(load.weight_bytes)}, {load.bits_per_weight:.2f} bits a weight, "
        f"{percent(load.quantized_fraction, places=0)} of the parameters quantized, "
        f"lm_head {plain_line(load.lm_head_dtype)} {tied}{each}",
        f"load: {seconds(load.load_s)}",
    ]


DTYPE = "float16"  # Default type of `benchmarker generate`.
QUESTION = "Why is the sky blue?"
TEXTS = {"qwen3-small": "The function returns"}  # Example prompts for models that are not trained for questions.


def generate_command(records: Sequence[GenerationRecord]) -> str:
    """Return `benchmarker generate --model Qwen/Qwen3-4B --quant int8 --engine native "Why is the sky blue?"`.

    Return '' for an external engine, for several GPUs, for an imported record, for random weights of a folder, a shape
    or a format that only checkpoints have, for code of a model's repository, and for a model without a tokenizer.
    """
    first = records[0]
    model_id = first.model.checkpoint or first.model.id
    can_run = runs_in_generate(first.variant, first.model) and not first.model.trust_remote_code
    can_run &= first.model.load_format == "dummy" or not first.cells or first.cells[0].prompt_source != NO_TOKENIZER
    if not can_run or first.variant.gpus > 1 or first.imported:
        return ""
    words = ["--model", model_id]
    words += ["--revision", first.model.revision] if first.model.revision else []
    words += ["--dtype", first.model.dtype] if first.model.dtype != DTYPE else []
    options, engine_options = chosen_options(first.variant)
    words += ["--quant", first.variant.quant, *_pairs("--option", options)]
    words += ["--engine", first.variant.engine, *_pairs("--engine-option", engine_options)]
    text = TEXTS.get(model_id, QUESTION)
    return plain_line(f'benchmarker generate {shlex.join(words)} "{text}"'.replace("`", ""), longest=500)


def _pairs(flag: str, options: Mapping[str, Scalar]) -> list[str]:
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return [word for name, text in texts.items() for word in (flag, f"{name}={text}")]
