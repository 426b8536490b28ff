"""Rules for records that may share a table.

All records must agree in the workload, the device and its drivers, the versions of libraries with kernels, the inputs,
and the fields that the workload adds, such as the model. The records of one variant must also agree in its form:
quantization, options, engine and type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarker.comparison.rows import CellKey, Circumstance, keys_of
from benchmarker.core.errors import COMPUTING, ResultsError
from benchmarker.core.tables import plain_line
from benchmarker.schema.base import changed_fields
from benchmarker.schema.record import RunRecord
from benchmarker.schema.registry import workload_of

SHOWN_VALUES = 3
SHOWN_DIFFERENCES = 4

EITHER_CARD = ("device.index:", "device.uuid:")
"""Fields that differ between two GPUs of one kind. They are in no cell's key."""
KEYED_PROCEDURE = ("warmup", "warmup_limit", "runs")
"""Fields of a record's procedure that are in a cell's key."""


class DifferingRecordsError(ResultsError):
    """Records that may not share a table."""


@dataclass(frozen=True)
class Difference:
    """A field whose value differs between records."""

    field: str
    counts: dict[str, int]
    """Number of records by value."""

    def sentence(self) -> str:
        """Return `device is A in 3 records and B in 2`."""
        phrases = [
            f"{plain_line(value)} in {count} record{'' if count == 1 else 's'}"
            for value, count in list(self.counts.items())[:SHOWN_VALUES]
        ]
        if len(self.counts) > SHOWN_VALUES:
            phrases.append(f"{len(self.counts) - SHOWN_VALUES} other values")
        return f"{self.field} is {' and '.join(phrases)}"


@dataclass(frozen=True)
class Identity:
    """Properties that all records of one variant share under the same circumstances."""

    name: str
    circumstances: tuple[str | None, ...]
    form: tuple[str, ...]

    def label(self, others: Sequence[Identity]) -> str:
        """Return the name; if several identities share it, followed by the parts that distinguish them."""
        namesakes = [identity.parts for identity in others if identity.name == self.name]
        positions: list[int] = []
        for position in range(len(self.parts)):
            if _distinct(namesakes, [*positions, position]) > _distinct(namesakes, positions):
                positions.append(position)
        return f"{self.name} ({', '.join(self.parts[position] for position in positions)})" if positions else self.name

    @property
    def parts(self) -> tuple[str, ...]:
        """Values in which two variants of one name may differ."""
        return (*(value or "unknown" for value in self.circumstances), *self.form)


def _distinct(all_parts: Sequence[tuple[str, ...]], positions: Sequence[int]) -> int:
    return len({tuple(parts[position] for position in positions) for parts in all_parts})


def check_comparable(records: Sequence[RunRecord], *, force: bool) -> tuple[Difference, ...]:
    """Return the differences between records that should agree.

    Args:
        force: Return the differences. Without it any difference is an error.

    Raises:
        ResultsError: A difference without `force`, or records of several workloads, whose rows have other columns.
    """
    check_workload(records)
    differences = (*between_records(records), *between_inputs(records), *_within_variants(records))
    if differences and not force:
        raise DifferingRecordsError(refusal(differences))
    return differences


def check_workload(records: Sequence[RunRecord]) -> None:
    """Refuse records of several workloads, whose rows have other columns."""
    counts = Counter(record.workload for record in records)
    if len(counts) > 1:
        raise ResultsError(
            f"these records do not compare: {Difference('workload', dict(counts)).sentence()}. "
            "Give the paths of one workload"
        )


def check_keys(variants: Mapping[str, Sequence[RunRecord]]) -> None:
    """Refuse to merge cells of one variant that one sweep measured under two keys, even with `--force`.

    Args:
        variants: Records by the name of the row that they make.

    Raises:
        ResultsError: A cell has two keys in one sweep. The message names two such records.
    """
    for name, members in variants.items():
        firsts: dict[tuple[str, CellKey], tuple[str, RunRecord]] = {}
        for record in members:
            for cell_key, cell in zip(keys_of(record), record.cells, strict=True):
                # Cells that failed have no key, and neither have those of old or imported records.
                if record.sweep is None or cell.status != "ok" or cell.key is None:
                    continue
                key, first = firsts.setdefault((record.sweep, cell_key), (cell.key, record))
                if key != cell.key:
                    raise ResultsError(_two_things(name, first, record))


def _two_things(name: str, first: RunRecord, second: RunRecord) -> str:
    return (
        f"variant '{plain_line(name)}' is two things in one sweep: the keys of its cells differ between "
        f"{_record_words(first)} and {_record_words(second)} ({_what_differs(first, second)}); leave one of them out"
    )


def _record_words(record: RunRecord) -> str:
    return f"record {plain_line(record.run_id)} of round {record.round + 1}"


def _what_differs(first: RunRecord, second: RunRecord) -> str:
    """Return the fields in which two records differ, of those that decide a cell's key."""
    facts = (*workload_of(first.workload).subject_fields, "variant", "environment")
    changes = [
        *(
            change
            for name in facts
            for change in changed_fields(getattr(first, name), getattr(second, name))
            if not change.startswith(EITHER_CARD)
        ),
        *(
            f"{name}: {value}, then {second.procedure.get(name)}"
            for name, value in first.procedure.items()
            if name in KEYED_PROCEDURE and second.procedure.get(name) != value
        ),
    ]
    sentences = [plain_line(change) for change in changes[:SHOWN_DIFFERENCES]]
    return "; ".join(sentences) or "the records hold nothing that differs: the files that were read were others"


def refusal(differences: Sequence[Difference]) -> str:
    """Return the error text for records that differ, with the remedy."""
    sentences = "; ".join(difference.sentence() for difference in differences[:SHOWN_DIFFERENCES])
    rest = len(differences) - SHOWN_DIFFERENCES
    more = f"; and {rest} more field{'' if rest == 1 else 's'}" if rest > 0 else ""
    return f"these records do not compare: {sentences}{more}. Give fewer paths, or --force to compare them all the same"


def named_variants(
    records: Sequence[RunRecord], differences: Sequence[Difference]
) -> dict[str, tuple[Identity, list[RunRecord]]]:
    """Return the records by the name of their variant in tables.

    Variants keep the order in which they were first run. Single runs have no such order and are sorted by family, such
    as the quantization, with the plainest variant first.
    """
    fields = [difference.field for difference in differences]
    variants: dict[Identity, list[RunRecord]] = {}
    for record in sorted(records, key=lambda record: (record.moment, record.started_at)):
        variants.setdefault(_identity(record, fields), []).append(record)
    ordered = list(variants)
    if all(record.sweep is None for record in records):
        families = list(dict.fromkeys(members[0].family for members in variants.values()))

        def order(identity: Identity) -> tuple[int, int]:
            record = variants[identity][0]
            return families.index(record.family), record.family_place

        ordered.sort(key=order)
    return {identity.label(ordered): (identity, variants[identity]) for identity in ordered}


def between_records(records: Sequence[RunRecord]) -> list[Difference]:
    """Return the differences in device, versions and the fields of the workload, such as the model."""
    differences = []
    for field, value_of in circumstances(records[0].workload, records).items():
        # A run that failed before loading has no revision and shapes of its model.
        values = Counter(value_of(record) for record in records if record.knows_subject or value_of(record) is not None)
        if field in UNSAID or (field in COMPUTING and field not in ("torch", "transformers")):
            # A variant that does without a library may come from an environment without it.
            del values[None]
        if len(values) > 1:
            differences.append(Difference(field, {value or "unknown": count for value, count in values.items()}))
    return differences


def between_inputs(records: Sequence[RunRecord]) -> list[Difference]:
    """Return the first cells of one shape with different inputs, such as other token ids."""
    inputs: dict[CellKey, Counter[str]] = {}
    for record in records:
        for key, cell in zip(keys_of(record), record.cells, strict=True):
            if cell.status == "ok":
                inputs.setdefault(key, Counter())[(cell.inputs_sha256 or "unknown")[:12]] += 1
    for key, counts in inputs.items():
        if len(counts) > 1:
            return [Difference(key.inputs_words, dict(counts))]
    return []


def _within_variants(records: Sequence[RunRecord]) -> list[Difference]:
    by_name: dict[str, list[RunRecord]] = {}
    for record in records:
        by_name.setdefault(record.variant.name, []).append(record)
    differences = []
    for name, members in by_name.items():
        for field in members[0].form:
            counts = Counter(record.form[field] for record in members)
            if len(counts) > 1:
                differences.append(Difference(f"{field} of variant '{plain_line(name)}'", dict(counts)))
        differences += _between_runs(name, members)
    return differences


def _between_runs(name: str, members: Sequence[RunRecord]) -> list[Difference]:
    """Return how one form ran differently, such as another kernel chosen by `auto`. Only records of one device and set
    of cells are compared, because an engine's choice may depend on both. A record without this information agrees with
    all."""
    by_cells: dict[tuple[object, ...], list[RunRecord]] = {}
    for record in members:
        by_cells.setdefault((record.environment.device.name, *keys_of(record)), []).append(record)
    differences: dict[str, Difference] = {}
    for records in by_cells.values():
        facts = [record.choices for record in records]
        for field in facts[0]:
            counts = Counter(value for each in facts if (value := each[field]))
            if len(counts) > 1:
                differences[field] = Difference(f"{field} of variant '{plain_line(name)}'", dict(counts))
    return list(differences.values())


def _identity(record: RunRecord, fields: Sequence[str]) -> Identity:
    by_name = circumstances(record.workload)
    return Identity(
        name=record.variant.name,
        circumstances=tuple(by_name[field](record) for field in fields if field in by_name),
        form=tuple(record.form.values()),
    )


INSTRUCTIONS = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA")
COMPILER = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
OF_VARIANTS = ("torchao", "bitsandbytes", "optimum", "gptqmodel")
"""Libraries that only some variants run."""
UNSAID = ("power limit", "governor")
"""Circumstances that some records lack. A record without them agrees with all."""


def circumstances(workload: str, records: Sequence[RunRecord] = ()) -> dict[str, Circumstance]:
    """Return the functions of a record whose values must agree, by their names in a message."""
    return {
        "device": lambda record: record.environment.device.name,
        "device kind": lambda record: record.environment.device.kind,
        "driver": lambda record: record.environment.device.driver,
        "device runtime": lambda record: record.environment.device.runtime,
        "power limit": _power_limit,
        "processor": lambda record: record.environment.cpu,
        "cores": _on_cpu(lambda record: record.environment.cores),
        "threads": _on_cpu(lambda record: record.environment.threads),
        "governor": _on_cpu(lambda record: record.environment.governor),
        "instruction switches": _on_cpu(_switches(INSTRUCTIONS)),
        "compiler switches": _switches(COMPILER),
        "Python": _python,
        "libraries imported": lambda record: "once a round" if record.forked else "in each process",
        **workload_of(workload).circumstances(records),
        "benchmarker": lambda record: record.benchmarker,
        **{package: _version_of(package) for package in COMPUTING},
    }


def _on_cpu(value_of: Callable[[RunRecord], object]) -> Circumstance:
    def circumstance(record: RunRecord) -> str | None:
        value = value_of(record) if record.environment.device.kind == "cpu" else None
        return str(value) if value else None

    return circumstance


def _switches(names: tuple[str, ...]) -> Circumstance:
    def switches(record: RunRecord) -> str | None:
        variables = record.environment.variables
        return ", ".join(f"{name}={variables[name]}" for name in names if name in variables) or None

    return switches


def _power_limit(record: RunRecord) -> str | None:
    limit_w = record.environment.device.power_limit_w
    return f"{limit_w:.0f} W" if limit_w else None


def _python(record: RunRecord) -> str | None:
    return ".".join(record.environment.python.split(".")[:2]) if record.environment.python else None


def _version_of(package: str) -> Circumstance:
    def version(record: RunRecord) -> str | None:
        libraries = record.libraries
        is_run = package not in OF_VARIANTS or libraries is None or package in libraries
        return record.environment.packages.get(package) if is_run else None

    return version
