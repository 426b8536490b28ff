"""The lines above a table of text generation."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarker.core.formatting import gib, percent, seconds
from benchmarker.core.tables import escaped
from benchmarker.report.header import each, in_brackets, machine_lines
from benchmarker.schema.model import LoadFacts
from benchmarker.workloads.generation.record import GenerationRecord


def header(records: Sequence[GenerationRecord]) -> tuple[str, ...]:
    """What was measured, on what, with what, and how."""
    models = each(records, lambda record: record.model.id)
    revisions = each(records, lambda record: (record.model.revision or "")[:12])
    types = each(records, lambda record: record.model.dtype)
    dummies = [record.model.load_format == "dummy" for record in records]
    weights = "dummy weights" if all(dummies) else "some dummy weights" if any(dummies) else ""
    return (
        f"model: {models}{in_brackets(types, revisions and f'revision {revisions}', weights)}",
        *machine_lines(records),
    )


def variant_line(record: GenerationRecord) -> str:
    """`variant: int8, engine eager`."""
    return f"variant: {escaped(record.variant.name)}, engine {escaped(record.variant.engine)}"


def load_words(record: GenerationRecord) -> tuple[str, ...]:
    """What loading made, in one line."""
    load = record.load
    if load is None:
        return ()
    tied = "tied to the embedding" if load.lm_head_tied else "not tied"
    return (
        f"weights: {gib(load.weight_bytes)}, {load.bits_per_weight:.2f} bits a weight, "
        f"{percent(load.quantized_fraction, places=0)} of the parameters quantized, "
        f"lm_head {escaped(load.lm_head_dtype)} {tied}{_of_each(load)}",
        f"load: {seconds(load.load_s)}",
    )


def _of_each(load: LoadFacts) -> str:
    """What of the weights each of several GPUs holds; nothing for one."""
    return f"; on the GPUs {', '.join(map(gib, load.per_gpu_bytes))}" if load.per_gpu_bytes else ""
