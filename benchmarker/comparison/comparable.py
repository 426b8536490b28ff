"""Rules for records that may share a table.

All records must agree in the workload, the device and its drivers, the versions of libraries with kernels, the inputs,
and the fields that the workload adds, such as the model. The records of one variant must also agree in
`RunRecord.form`: quantization, options, engine and dtype.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarker.comparison.rows import CellKey, Circumstance, cell_of, grouped, keys_of
from benchmarker.core.errors import COMPUTING, ResultsError
from benchmarker.core.formatting import plural
from benchmarker.core.tables import plain_line
from benchmarker.schema.base import changed_fields
from benchmarker.schema.record import RunRecord
from benchmarker.schema.registry import workload_of

SHOWN_VALUES = 3
SHOWN_DIFFERENCES = 4

EITHER_CARD = ("device.index:", "device.uuid:")
"""Fields that differ between two GPUs of the same model. `CellBase.key` does not depend on them."""
KEYED_PROCEDURE = ("warmup", "warmup_limit", "runs")
INSTRUCTIONS = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA")
COMPILER = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
OF_VARIANTS = ("torchao", "bitsandbytes", "optimum", "gptqmodel")
OPTIONAL = ("power limit", "governor", *(package for package in COMPUTING if package not in ("torch", "transformers")))
"""Names in `circumstances` whose value may be None, such as an unused library's version. None agrees with any value."""


class DifferingRecordsError(ResultsError):
    """Records that may not share a table."""


@dataclass(frozen=True)
class Difference:
    """A field whose value differs between records, with the number of records by value."""

    field: str
    counts: dict[str, int]

    def sentence(self) -> str:
        """Return `device is A in 3 records and B in 2 records`."""
        values = list(self.counts.items())[:SHOWN_VALUES]
        phrases = [f"{plain_line(value)} in {plural(count, 'record', 'records')}" for value, count in values]
        if len(self.counts) > SHOWN_VALUES:
            phrases.append(f"{len(self.counts) - SHOWN_VALUES} other values")
        return f"{self.field} is {' and '.join(phrases)}"


def check_comparable(records: Sequence[RunRecord], *, force: bool) -> tuple[Difference, ...]:
    """Return the differences that make records incomparable. Raises ResultsError if there are any, unless `force`."""
    check_workload(records)
    differences = (*between_records(records), *between_inputs(records), *_within_variants(records))
    if differences and not force:
        places = [option.place for option in workload_of(records[0].workload).options()]
        raise DifferingRecordsError(refusal(differences, has_checkpoints="variant.checkpoint" in places))
    return differences


def check_workload(records: Sequence[RunRecord]) -> None:
    counts = Counter(record.workload for record in records)
    if len(counts) > 1:
        raise ResultsError(
            f"these records do not compare: {Difference('workload', dict(counts)).sentence()}. "
            "Give the paths of one workload"
        )


def check_keys(variants: Mapping[str, Sequence[RunRecord]]) -> None:
    """Raise ResultsError, even with `--force`, if a variant's cell has two values of `CellBase.key` in one sweep."""
    for name, members in variants.items():
        firsts: dict[tuple[str, CellKey], tuple[str, RunRecord]] = {}
        for record in members:
            for cell_key, cell in zip(keys_of(record), record.cells, strict=True):
                # Failed cells have no key, and neither have cells of imported records or of older versions.
                if record.sweep is None or cell.status != "ok" or cell.key is None:
                    continue
                key, first = firsts.setdefault((record.sweep, cell_key), (cell.key, record))
                if key != cell.key:
                    both = " and ".join(
                        f"record {plain_line(each.run_id)} of round {each.round + 1}" for each in (first, record)
                    )
                    raise ResultsError(
                        f"variant '{plain_line(name)}' is two things in one sweep: the keys of its cells differ "
                        f"between {both} ({_keyed_differences(first, record)}); leave one of them out"
                    )


def _keyed_differences(first: RunRecord, second: RunRecord) -> str:
    changes = [
        change
        for name in (*workload_of(first.workload).subject_fields, "variant", "environment")
        for change in changed_fields(getattr(first, name), getattr(second, name))
        if not change.startswith(EITHER_CARD)
    ]
    changes += [
        f"{name}: {value}, then {second.procedure.get(name)}"
        for name, value in first.procedure.items()
        if name in KEYED_PROCEDURE and second.procedure.get(name) != value
    ]
    sentences = [plain_line(change) for change in changes[:SHOWN_DIFFERENCES]]
    return "; ".join(sentences) or "the records hold nothing that differs: the files that were read were others"


def refusal(differences: Sequence[Difference], *, has_checkpoints: bool = False) -> str:
    sentences = "; ".join(difference.sentence() for difference in differences[:SHOWN_DIFFERENCES])
    rest = len(differences) - SHOWN_DIFFERENCES
    more = f"; and {rest} more field{'' if rest == 1 else 's'}" if rest > 0 else ""
    remedy = "Give fewer paths"
    if has_checkpoints and any(difference.field == "model" for difference in differences):
        remedy = "Measure checkpoints of one model with `run --model MODEL --checkpoint FOLDER`, give fewer paths"
    return f"these records do not compare: {sentences}{more}. {remedy}, or --force to compare them all the same"


Circumstances = tuple[str | None, ...]  # Values of those `circumstances()` that differ between the compared records.
Identity = tuple[str, Circumstances, tuple[str, ...]]
"""Name, circumstances, and values of `RunRecord.form`: equal in all records of one variant."""


def named_variants(
    records: Sequence[RunRecord], differences: Sequence[Difference]
) -> dict[str, tuple[Circumstances, list[RunRecord]]]:
    """Return (circumstances, records) of each variant by its name in tables.

    Variants are in the order of their first run. If no record belongs to a sweep, variants of one family, such as a
    quantization, are next to each other, in the order of the engine registry.
    """
    by_name = circumstances(records[0].workload)
    fields = [difference.field for difference in differences if difference.field in by_name]
    form_fields = dict.fromkeys(field for record in records for field in record.form)  # `gpus` is only in some forms.
    variants: dict[Identity, list[RunRecord]] = {}
    for record in sorted(records, key=lambda record: (record.moment, record.started_at)):
        values = tuple(by_name[field](record) for field in fields)
        form = tuple(record.form.get(field, "unset") for field in form_fields)
        variants.setdefault((record.variant.name, values, form), []).append(record)
    ordered = list(variants)
    if all(record.sweep is None for record in records):
        families = list(dict.fromkeys(members[0].family for members in variants.values()))
        ordered.sort(key=lambda each: (families.index(variants[each][0].family), variants[each][0].family_place))
    return {_label(identity, ordered): (identity[1], variants[identity]) for identity in ordered}


def _label(identity: Identity, others: Sequence[Identity]) -> str:
    """Return the variant's name and the values in which variants of this name differ, such as `int8 (vllm)`."""

    def parts_of(each: Identity) -> list[str]:
        return [*(value or "unknown" for value in each[1]), *each[2]]

    def distinct(positions: Sequence[int]) -> int:
        return len({tuple(parts[position] for position in positions) for parts in namesakes})

    name, parts = identity[0], parts_of(identity)
    namesakes = [parts_of(each) for each in others if each[0] == name]
    positions: list[int] = []
    for position in range(len(parts)):
        if distinct([*positions, position]) > distinct(positions):
            positions.append(position)
    return f"{name} ({', '.join(parts[position] for position in positions)})" if positions else name


def between_records(records: Sequence[RunRecord]) -> list[Difference]:
    """Return the differences in device, versions and the fields of the workload, such as the model."""
    differences = []
    for field, value_of in circumstances(records[0].workload, records).items():
        # The record of a run that failed before loading lacks facts of the model, such as its revision.
        values = Counter(value_of(record) for record in records if record.knows_subject or value_of(record) is not None)
        if field in OPTIONAL:
            del values[None]
        if len(values) > 1:
            differences.append(Difference(field, {value or "unknown": count for value, count in values.items()}))
    return differences


def between_inputs(records: Sequence[RunRecord]) -> list[Difference]:
    inputs: dict[CellKey, Counter[str]] = defaultdict(Counter)
    for record in records:
        for key, cell in zip(keys_of(record), record.cells, strict=True):
            if cell.status == "ok":
                inputs[key][(cell.inputs_sha256 or "unknown")[:12]] += 1
    differing = ((key, counts) for key, counts in inputs.items() if len(counts) > 1)
    return [Difference(f"input at {key.words} (inputs_sha256)", dict(counts)) for key, counts in differing][:1]


def _within_variants(records: Sequence[RunRecord]) -> list[Difference]:
    """Return the differences in `form` and in `choices`, such as a kernel, between records of the same variant.

    Only records with the same device and cells must have the same choices, because an engine's choice may depend on
    both. A record that lacks a choice agrees with all records.
    """
    differences = []
    for name, members in grouped((record.variant.name, record) for record in records).items():
        fields = dict.fromkeys(field for record in members for field in record.form)
        values = {field: Counter(record.form.get(field, "unset") for record in members) for field in fields}
        by_cells = grouped(((record.environment.device.name, *keys_of(record)), record) for record in members)
        for alike in by_cells.values():
            for field in alike[0].choices:
                chosen = Counter(value for record in alike if (value := record.choices[field]))
                values |= {field: chosen} if len(chosen) > 1 else {}
        differences += [
            Difference(f"{field} of variant '{plain_line(name)}'", dict(counts))
            for field, counts in values.items()
            if len(counts) > 1
        ]
    return differences


def kept_apart(records: Sequence[RunRecord], key: CellKey) -> list[dict[str, str | None]]:
    """Return for each record the properties, such as `threads`, that differ between the records of one form in the
    cell `key`, and for which `compare` refuses to pool them."""
    by_name, optional = circumstances(records[0].workload, records), {*OPTIONAL, *records[0].choices}
    properties = [
        {
            **{name: value_of(record) for name, value_of in by_name.items()},
            **record.choices,
            "inputs_sha256": (getattr(cell_of(record, key), "inputs_sha256", None) or "unknown")[:12],
        }
        for record in records
    ]
    values = {name: {each[name] for each in properties} for name in properties[0]}
    differing = [name for name, choices in values.items() if len(choices - {None} if name in optional else choices) > 1]
    return [{name: each[name] for name in differing} for each in properties]


def circumstances(workload: str, records: Sequence[RunRecord] = ()) -> dict[str, Circumstance]:
    """Return a function of a record for each property that must agree, by the property's name, such as `driver`."""
    return {
        "device": lambda record: record.environment.device.name,
        "device kind": lambda record: record.environment.device.kind,
        "driver": lambda record: record.environment.device.driver,
        "device runtime": lambda record: record.environment.device.runtime,
        "power limit": lambda record: (
            f"{limit_w:.0f} W" if (limit_w := record.environment.device.power_limit_w) else None
        ),
        "processor": lambda record: record.environment.cpu,
        "cores": lambda record: _on_cpu(record, record.environment.cores),
        "threads": lambda record: _on_cpu(record, record.environment.threads),
        "governor": lambda record: _on_cpu(record, record.environment.governor),
        "instruction switches": lambda record: _on_cpu(record, _switches(record, INSTRUCTIONS)),
        "compiler switches": lambda record: _switches(record, COMPILER),
        "Python": lambda record: ".".join((record.environment.python or "").split(".")[:2]) or None,
        "libraries imported": lambda record: "once a round" if record.forked else "in each process",
        **workload_of(workload).circumstances(records),
        "benchmarker": lambda record: record.benchmarker,
        **{package: partial(_version, package) for package in COMPUTING},
    }


def _on_cpu(record: RunRecord, value: object) -> str | None:
    return str(value) if value and record.environment.device.kind == "cpu" else None


def _switches(record: RunRecord, names: Sequence[str]) -> str | None:
    variables = record.environment.variables
    return ", ".join(f"{name}={variables[name]}" for name in names if name in variables) or None


def _version(package: str, record: RunRecord) -> str | None:
    libraries = record.libraries
    is_run = package not in OF_VARIANTS or libraries is None or package in libraries
    return record.environment.packages.get(package) if is_run else None
