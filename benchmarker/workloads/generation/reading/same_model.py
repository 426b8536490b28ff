"""Which names in records mean one model: a folder by two paths, and a model beside its quantized checkpoint.

A quantized checkpoint on the hub has a name of its own, as `org/model-GPTQ-Int4`. To hold it against `org/model` is
what a comparison of forms is for. It is recognized by its name and its shapes, and a line below the table says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarker.core.tables import escaped
from benchmarker.workloads.generation.record import GenerationRecord

FORM_WORDS = re.compile(
    r"gptq|gptqmodel|awq|hqq|autoround|bnb|nf4|fp8|quantized|sym|int[48]|[48]|[48]?bits?|w\d+a\d+|g?(32|64|128)",
    re.IGNORECASE,
)
"""Words that a quantized checkpoint's name has after the model's."""


def as_one(records: Sequence[GenerationRecord]) -> list[GenerationRecord]:
    """The records, each with the name and revision of the model that stands for its own."""
    names = standing_names(records)
    revisions: dict[str, str | None] = {}
    for record in records:
        if record.load:
            revisions.setdefault(record.model.id, record.model.revision)
    renamed = []
    for record in records:
        name = names[record.model.id]
        if name != record.model.id:
            model = record.model.model_copy(update={"id": name, "revision": revisions.get(name)})
            renamed.append(record.model_copy(update={"model": model}))
        else:
            renamed.append(record)
    return renamed


def standing_names(records: Sequence[GenerationRecord]) -> dict[str, str]:
    """Each model's name with the one that stands for it: its own, where it means no other's model."""
    names = list(dict.fromkeys(record.model.id for record in records))
    by_files: dict[str, str] = {}
    for record in records:
        if record.model.files_sha256:
            by_files.setdefault(record.model.files_sha256, record.model.id)
    standing = {name: name for name in names}
    for record in records:
        if record.model.files_sha256:
            standing[record.model.id] = by_files[record.model.files_sha256]
    for name in names:
        base = next((other for other in names if _is_checkpoint_of(name, other, records)), None)
        if base:
            standing[name] = standing[base]
    return standing


def checkpoint_notes(records: Sequence[GenerationRecord]) -> list[str]:
    """What was taken for a quantized checkpoint of what, one line each."""
    names = list(dict.fromkeys(record.model.id for record in records))
    return [
        f"{escaped(name)} is taken for a quantized checkpoint of {escaped(base)}, by its name and its shapes."
        for name in names
        for base in names
        if _is_checkpoint_of(name, base, records)
    ]


def _is_checkpoint_of(name: str, base: str, records: Sequence[GenerationRecord]) -> bool:
    """Whether `name` is `base` with the words of a form behind it, with equal shapes and quantized throughout."""
    last, base_last = (_last_part(text) for text in (name, base))
    words = [word for word in re.split(r"[-_.]+", last[len(base_last) :]) if word]
    if not last.lower().startswith(base_last.lower()) or not words or not all(map(FORM_WORDS.fullmatch, words)):
        return False
    own, others = ([record for record in records if record.model.id == each and record.load] for each in (name, base))
    shapes = {record.model.config_sha256 for record in (*own, *others)}
    is_quantized = all(record.load and record.load.quantized_fraction > 0 for record in own)
    return bool(own and others) and is_quantized and len(shapes) == 1 and None not in shapes


def _last_part(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1]
