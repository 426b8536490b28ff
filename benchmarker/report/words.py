"""What a table says in sentences: statuses, flags, and what must be known before believing a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from benchmarker.record import RunRecord
from benchmarker.report.rows import CellKey, Row
from benchmarker.report.tables import escaped
from benchmarker.units import gib, seconds

STATUSES = {
    "invalid": "invalid",
    "oom_gpu": "out of GPU memory",
    "oom_host": "out of memory",
    "timeout": "timed out",
    "crash": "crashed",
    "unsupported": "not supported",
    "error": "error",
    "failed": "failed",
    "not measured": "not measured",
}

FLAGS = {
    "unstable_warmup": "the last three warm-ups still differed by more than 2 %",
    "late_warmup": "the first timed run was far slower than the others",
    "nondeterministic_tokens": "repeats of the same prompt gave different tokens",
    "power_limited": "the power limit held the clocks down",
    "drift": "times drifted by more than 1 % over the session",
    "imported": "read from a log, which holds less than a record",
}

REASON_LENGTH = 300

PACKAGES = ("torch", "transformers", "torchao", "bitsandbytes", "optimum", "gptqmodel")
"""Named in the header; the record holds more."""


def status_words(status: str) -> str:
    return STATUSES.get(status, escaped(status))


def cell_words(key: CellKey | None) -> str:
    """`prompt 26, 100 new tokens, batch 1`."""
    if key is None:
        return "every cell"
    text = f", text {key.text + 1}" if key.text else ""
    return f"prompt {key.prompt_tokens}, {key.new_tokens} new tokens, batch {key.batch_size}{text}"


def header(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """What was measured, on what, with what, and how."""
    models = _each(records, lambda one: one.model.id)
    revisions = _each(records, lambda one: (one.model.revision or "")[:12])
    types = _each(records, lambda one: one.model.dtype)
    weights = "dummy weights" if any(one.model.load_format == "dummy" for one in records) else ""
    devices = _each(records, lambda one: one.environment.device.name)
    programs = _each(records, lambda one: f"benchmarker {one.benchmarker}")
    drivers = _each(records, _platform)
    return (
        f"model: {models}{_in_brackets(types, revisions and f'revision {revisions}', weights)}",
        f"device: {devices}{_in_brackets(drivers)}",
        f"versions: {'; '.join(filter(None, (programs, _packages(records))))}",
        f"measured: {_procedure(records)}",
    )


def load_words(record: RunRecord) -> tuple[str, ...]:
    """What loading made, in one line."""
    load = record.load
    if load is None:
        return ()
    tied = "tied to the embedding" if load.lm_head_tied else "not tied"
    return (
        f"weights: {gib(load.weight_bytes)}, {load.bits_per_weight:.2f} bits a weight, "
        f"{100 * load.quantized_fraction:.0f} % of the parameters quantized, "
        f"lm_head {escaped(load.lm_head_dtype)} {tied}",
        f"load: {seconds(load.load_s)}",
    )


def caveats(records: Sequence[RunRecord], rows: Sequence[Row]) -> tuple[str, ...]:
    """What a reader should know before believing the table, most important first."""
    return (*_dummy(rows), *_types(records), *_failed(rows), *_unfinished(records), *_flagged(rows), *_notes(records))


def _each(records: Sequence[RunRecord], of: Callable[[RunRecord], str]) -> str:
    return ", ".join(escaped(value) for value in dict.fromkeys(map(of, records)) if value)


def _in_brackets(*parts: str) -> str:
    said = ", ".join(filter(None, parts))
    return f" ({said})" if said else ""


def _platform(record: RunRecord) -> str:
    device = record.environment.device
    if device.kind == "cpu":
        return f"{record.environment.threads} threads"
    runtime = f"{'CUDA' if device.kind == 'cuda' else 'ROCm'} {device.runtime}" if device.runtime else ""
    return ", ".join(filter(None, (runtime, f"driver {device.driver}" if device.driver else "")))


def _packages(records: Sequence[RunRecord]) -> str:
    versions: dict[str, dict[str, None]] = {}
    for record in records:
        for name in PACKAGES:
            if name in record.environment.packages:
                versions.setdefault(name, {})[record.environment.packages[name]] = None
    return ", ".join(f"{escaped(name)} {escaped(' or '.join(found))}" for name, found in versions.items())


def _procedure(records: Sequence[RunRecord]) -> str:
    processes: dict[str, int] = {}
    for record in records:
        processes[record.variant.name] = processes.get(record.variant.name, 0) + 1
    runs = _each(records, lambda one: str(one.procedure.get("runs", "")))
    warmup = _each(records, lambda one: str(one.procedure.get("warmup", "")))
    counts = sorted(set(processes.values()))
    many = f"{counts[0]} to {counts[-1]} processes" if len(counts) > 1 else _plural(counts[0], "process", "processes")
    each = f", {runs} timed runs a cell after at least {warmup} warm-ups" if runs and warmup else ""
    days = sorted({record.started_at[:10] for record in records})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{many} a variant{each}, {escaped(when)}"


def _plural(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _dummy(rows: Sequence[Row]) -> list[str]:
    if not any(row.dummy_weights for row in rows):
        return []
    return [
        "Random weights (load_format dummy): text and quality mean nothing; time and memory do not depend on the "
        "weights' values."
    ]


def _types(records: Sequence[RunRecord]) -> list[str]:
    """Variants may differ in the type of what is not quantized, and that is a difference to know."""
    names: dict[str, dict[str, None]] = {}
    for record in records:
        names.setdefault(record.model.dtype, {})[record.variant.name] = None
    if len(names) < 2:
        return []
    return [
        "Not all variants compute in the same type: "
        + "; ".join(f"{escaped(dtype)}: {_names(variants)}" for dtype, variants in names.items())
        + "."
    ]


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(escaped, names))


def _failed(rows: Sequence[Row]) -> list[str]:
    """One line for each reason, with all the rows that have it; then the rounds that were left out."""
    where: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.status != "ok":
            where.setdefault((row.variant, row.status, row.reason or ""), []).append(row)
    lines = [
        f"{escaped(variant)}{_where(found)}: {_why(status, reason)}"
        for (variant, status, reason), found in where.items()
    ]
    lost = [(row, failure) for row in rows for failure in row.failures]
    return lines + [
        f"{escaped(row.variant)}{_where([row])}: round {failure.round} is left out: "
        f"{_why(failure.status, failure.reason or '')}"
        for row, failure in lost
    ]


def _why(status: str, reason: str) -> str:
    words = status_words(status)
    return f"{words}: {escaped(reason, longest=REASON_LENGTH)}" if reason else f"{words}."


def _where(rows: Sequence[Row]) -> str:
    cells = [row.cell for row in rows if row.cell]
    if not cells:
        return ""
    return f" at {cell_words(cells[0])}" if len(cells) == 1 else f" in {len(cells)} cells"


def _unfinished(records: Sequence[RunRecord]) -> list[str]:
    words = {
        "running": "has not finished, or its process died: what it saved so far is used",
        "interrupted": "was interrupted: the cells it finished are used",
    }
    return [
        f"{escaped(record.variant.name)}, round {record.round}: the run {words[record.status]}."
        for record in records
        if record.status in words
    ]


def _flagged(rows: Sequence[Row]) -> list[str]:
    where: dict[str, list[Row]] = {}
    for row in rows:
        for flag in row.flags:
            where.setdefault(flag, []).append(row)
    return [f"{escaped(flag)}{_meaning(flag)} ({_marked(found)})." for flag, found in where.items()]


def _meaning(flag: str) -> str:
    return f": {FLAGS[flag]}" if flag in FLAGS else ""


def _marked(rows: Sequence[Row]) -> str:
    cells: dict[str, int] = {}
    for row in rows:
        cells[row.variant] = cells.get(row.variant, 0) + 1
    return ", ".join(f"{escaped(name)} in {_plural(count, 'cell', 'cells')}" for name, count in cells.items())


def _notes(records: Sequence[RunRecord]) -> list[str]:
    lines = [
        f"{escaped(record.variant.name)}: {escaped(note, longest=REASON_LENGTH)}"
        for record in records
        if record.load
        for note in record.load.notes
    ]
    return list(dict.fromkeys(lines))
