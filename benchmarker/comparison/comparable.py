"""May these records stand in one table?

What must be equal everywhere: the device and what drives it, the model and its weights, the versions that make the
kernels, the prompt. What must be equal within a variant: its quantization, options, engine and type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarker.comparison.aggregate import keys_of
from benchmarker.comparison.rows import CellKey
from benchmarker.core.errors import ResultsError
from benchmarker.core.packages import COMPUTING
from benchmarker.core.tables import plain_line
from benchmarker.engines.registry import ENGINES
from benchmarker.schema.base import changed_fields
from benchmarker.workloads.generation.record import GenerationRecord

SHOWN_VALUES = 3
SHOWN_DIFFERENCES = 4

EITHER_CARD = ("device.index:", "device.uuid:")
"""Which of several equal cards it was, which no key holds."""
KEYED_PROCEDURE = ("warmup", "warmup_limit", "runs")
"""Of a record's procedure, what is in a cell's key."""

Circumstance = Callable[[GenerationRecord], str | None]

FORM = ("quant", "engine", "options", "dtype")
"""What makes a variant what it is, beside its name."""


@dataclass(frozen=True)
class Difference:
    """One field that is not the same in all records."""

    field: str
    counts: dict[str, int]
    """Records by value."""

    def sentence(self) -> str:
        """`device is A in 3 records and B in 2`."""
        shown = [
            f"{plain_line(value)} in {count} record{'' if count == 1 else 's'}"
            for value, count in list(self.counts.items())[:SHOWN_VALUES]
        ]
        if len(self.counts) > SHOWN_VALUES:
            shown.append(f"{len(self.counts) - SHOWN_VALUES} other values")
        return f"{self.field} is {' and '.join(shown)}"


@dataclass(frozen=True)
class Identity:
    """What makes two records the same variant under the same circumstances."""

    name: str
    circumstances: tuple[str | None, ...]
    form: tuple[str, ...]

    def label(self, others: Sequence[Identity]) -> str:
        """The name; where several share it, with as much as tells them apart."""
        namesakes = [other.parts for other in others if other.name == self.name]
        shown: list[int] = []
        for position in range(len(self.parts)):
            if _told_apart(namesakes, [*shown, position]) > _told_apart(namesakes, shown):
                shown.append(position)
        return f"{self.name} ({', '.join(self.parts[position] for position in shown)})" if shown else self.name

    @property
    def quant(self) -> str:
        return self.form[0]

    @property
    def engine(self) -> str:
        return self.form[1]

    @property
    def parts(self) -> tuple[str, ...]:
        """All that two namesakes may differ in."""
        return (*(value or "unknown" for value in self.circumstances), *self.form)


def _told_apart(all_parts: Sequence[tuple[str, ...]], positions: Sequence[int]) -> int:
    return len({tuple(parts[position] for position in positions) for parts in all_parts})


def check_comparable(records: Sequence[GenerationRecord], *, force: bool) -> tuple[Difference, ...]:
    """What differs although it should not.

    Raises:
        ResultsError: Anything does, and it is not forced.
    """
    differences = (*between_records(records), *between_prompts(records), *_within_variants(records))
    if differences and not force:
        raise ResultsError(refusal(differences))
    return differences


def check_keys(variants: Mapping[str, Sequence[GenerationRecord]]) -> None:
    """Refuse to take cells together that one sweep measured of different things, forced or not.

    Args:
        variants: Records by the name of the row that they would make.

    Raises:
        ResultsError: A cell of a variant has two keys in one sweep. With two of the records, and what differs.
    """
    for name, members in variants.items():
        firsts: dict[tuple[str, CellKey], tuple[str, GenerationRecord]] = {}
        for record in members:
            for cell_key, cell in zip(keys_of(record), record.cells, strict=True):
                # Cells that failed have no key, and neither have those of old or imported records.
                if record.sweep is None or cell.status != "ok" or cell.key is None:
                    continue
                key, first = firsts.setdefault((record.sweep, cell_key), (cell.key, record))
                if key != cell.key:
                    raise ResultsError(_two_things(name, first, record))


def _two_things(name: str, first: GenerationRecord, other: GenerationRecord) -> str:
    return (
        f"variant '{plain_line(name)}' is two things in one sweep: the keys of its cells differ between "
        f"{_record_words(first)} and {_record_words(other)} ({_what_differs(first, other)}); leave one of them out"
    )


def _record_words(record: GenerationRecord) -> str:
    return f"record {plain_line(record.run_id)} of round {record.round + 1}"


def _what_differs(first: GenerationRecord, other: GenerationRecord) -> str:
    """Fields of two records that decide a key."""
    changes = [
        *changed_fields(first.model, other.model),
        *changed_fields(first.variant, other.variant),
        *(
            change
            for change in changed_fields(first.environment, other.environment)
            if not change.startswith(EITHER_CARD)
        ),
        *(
            f"{name}: {value}, then {other.procedure.get(name)}"
            for name, value in first.procedure.items()
            if name in KEYED_PROCEDURE and other.procedure.get(name) != value
        ),
    ]
    shown = [plain_line(change) for change in changes[:SHOWN_DIFFERENCES]]
    return "; ".join(shown) or "the records hold nothing that differs: the model's files were others"


def refusal(differences: Sequence[Difference]) -> str:
    """Why records are not compared, and what to do."""
    shown = "; ".join(difference.sentence() for difference in differences[:SHOWN_DIFFERENCES])
    rest = len(differences) - SHOWN_DIFFERENCES
    more = f"; and {rest} more field{'' if rest == 1 else 's'}" if rest > 0 else ""
    return f"these records do not compare: {shown}{more}. Give fewer paths, or --force to compare them all the same"


def named_variants(
    records: Sequence[GenerationRecord], differences: Sequence[Difference]
) -> dict[str, tuple[Identity, list[GenerationRecord]]]:
    """The records by variant, in the order in which the variants were first run; single runs, whose order nobody chose,
    with those of one quantization together, `generate` before the runtimes that take the host out."""
    fields = [difference.field for difference in differences]
    found: dict[Identity, list[GenerationRecord]] = {}
    for record in sorted(records, key=lambda one: (one.moment, one.started_at)):
        found.setdefault(_identity(record, fields), []).append(record)
    ordered = list(found)
    if all(record.sweep is None for record in records):
        quants = list(dict.fromkeys(identity.quant for identity in found))
        ordered.sort(key=lambda identity: (quants.index(identity.quant), _place(identity.engine)))
    return {identity.label(ordered): (identity, found[identity]) for identity in ordered}


def _place(engine: str) -> int:
    names = list(ENGINES)
    return names.index(engine) if engine in names else len(names)


def circumstances() -> dict[str, Circumstance]:
    """What must be equal in all records, by the name it has in a message."""
    return {
        "device": lambda one: one.environment.device.name,
        "device kind": lambda one: one.environment.device.kind,
        "driver": lambda one: one.environment.device.driver,
        "device runtime": lambda one: one.environment.device.runtime,
        "processor": lambda one: one.environment.cpu,
        "threads": _threads,
        "model": lambda one: one.model.id,
        "model revision": lambda one: one.model.revision,
        "model shapes (config_sha256)": lambda one: (one.model.config_sha256 or "")[:12] or None,
        "load_format": lambda one: one.model.load_format,
        "benchmarker": lambda one: one.benchmarker,
        **{package: _version_of(package) for package in COMPUTING},
    }


def _threads(record: GenerationRecord) -> str | None:
    """On a GPU they do next to nothing."""
    threads = record.environment.threads
    return str(threads) if threads and record.environment.device.kind == "cpu" else None


def _version_of(package: str) -> Circumstance:
    return lambda one: one.environment.packages.get(package)


def between_records(records: Sequence[GenerationRecord]) -> list[Difference]:
    """What differs in device, model or versions."""
    differences = []
    for field, of in circumstances().items():
        # A run that failed before it loaded does not know its model's revision or shapes.
        values = Counter(of(record) for record in records if record.load or of(record) is not None)
        if field in COMPUTING and field not in ("torch", "transformers"):
            # A variant that does without a library may come from an environment without it.
            del values[None]
        if len(values) > 1:
            differences.append(Difference(field, {value or "unknown": count for value, count in values.items()}))
    return differences


def between_prompts(records: Sequence[GenerationRecord]) -> list[Difference]:
    """Cells of the same shape must have been given the same token ids."""
    prompts: dict[CellKey, Counter[str]] = {}
    for record in records:
        for key, cell in zip(keys_of(record), record.cells, strict=True):
            if cell.status == "ok":
                prompts.setdefault(key, Counter())[(cell.inputs_sha256 or "unknown")[:12]] += 1
    for key, counts in prompts.items():
        if len(counts) > 1:
            where = f"prompt of {key.prompt_tokens} tokens (prompt_sha256)"
            return [Difference(where, dict(counts))]
    return []


def _within_variants(records: Sequence[GenerationRecord]) -> list[Difference]:
    """Records of one name must be of one form."""
    named: dict[str, list[GenerationRecord]] = {}
    for record in records:
        named.setdefault(record.variant.name, []).append(record)
    differences = []
    for name, members in named.items():
        for position, field in enumerate(FORM):
            counts = Counter(form_of(record)[position] for record in members)
            if len(counts) > 1:
                differences.append(Difference(f"{field} of variant '{plain_line(name)}'", dict(counts)))
    return differences


LATER_DEFAULTS = (("prefill", "plain"),)
"""Engine options that came later, each with the value that is as records from before it."""


def form_of(record: GenerationRecord) -> tuple[str, str, str, str]:
    """What FORM names, of this record."""
    options = {**record.variant.options, **record.variant.engine_options}
    texts = ", ".join(f"{key}={value}" for key, value in sorted(options.items()) if (key, value) not in LATER_DEFAULTS)
    return record.variant.quant, record.variant.engine, texts or "no options", record.model.dtype


def _identity(record: GenerationRecord, fields: Sequence[str]) -> Identity:
    of = circumstances()
    return Identity(
        name=record.variant.name,
        circumstances=tuple(of[field](record) for field in fields if field in of),
        form=form_of(record),
    )
