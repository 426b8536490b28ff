"""The lines under a table: what must be known before believing a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from benchmarker.comparison.aggregate import keys_of
from benchmarker.comparison.drift import find_drift
from benchmarker.comparison.rows import CellKey, Row
from benchmarker.comparison.words import cell_words
from benchmarker.core.numbers import percent
from benchmarker.core.stats import MIN_ROUNDS
from benchmarker.core.tables import escaped
from benchmarker.core.words import duration_words, plural
from benchmarker.report.limits import impossible
from benchmarker.schema.engine_facts import EngineFacts
from benchmarker.schema.record import Flag
from benchmarker.schema.status_words import status_words
from benchmarker.workloads.generation.record import GenerationRecord

FLAGS: dict[Flag, str] = {
    "unstable_warmup": "the last three warm-ups still differed by more than 2 %",
    "late_warmup": "the first timed run was far slower than the others",
    "nondeterministic_tokens": "repeats of the same prompt gave different tokens",
    "power_limited": "the power limit held the clocks down",
    "throttling_unknown": "the driver did not say whether the clocks were held down",
    "shared_device": "other processes computed on the device meanwhile",
    "imported": "read from a log, which holds less than a record",
}

REASON_LENGTH = 300
UUID_LENGTH = 12
COMMIT_LENGTH = 7
CLOCKS_WITHIN = 1.03
"""Variants whose clocks differ by more are shown with them."""


def caveats(records: Sequence[GenerationRecord], rows: Sequence[Row]) -> tuple[str, ...]:
    """What a reader should know before believing the table, most important first."""
    return (
        *impossible(rows),
        *_dummy(rows),
        *_types(records),
        *_cards(records),
        *_commits(records),
        *_sweeps(records),
        *_tuned_once(records),
        *_other_texts(records),
        *_failed(rows),
        *_unfinished(records),
        *_unjudged(records),
        *_clocks(rows),
        *_drifted(records),
        *_flagged(rows),
        *_no_energy(records),
        *_notes(records),
    )


def _dummy(rows: Sequence[Row]) -> list[str]:
    dummies = dict.fromkeys(row.variant for row in rows if row.dummy_weights)
    if not dummies:
        return []
    which = "" if all(row.dummy_weights for row in rows) else f" in {_names(dummies)}"
    return [
        f"Random weights (load_format dummy){which}: text and quality mean nothing; time and memory do not depend on "
        "the weights' values."
    ]


def _types(records: Sequence[GenerationRecord]) -> list[str]:
    """Variants may differ in the type of what is not quantized, and that is a difference to know."""
    names = _variants_by(records, lambda record: record.model.dtype)
    if len(names) < 2:
        return []
    return [
        "Not all variants compute in the same type: "
        + "; ".join(f"{escaped(dtype)}: {_names(variants)}" for dtype, variants in names.items())
        + "."
    ]


def _cards(records: Sequence[GenerationRecord]) -> list[str]:
    """Two boards of one name are not the same board."""
    return _who_ran_what(
        "boards, which are not quite alike",
        _variants_by(records, lambda record: record.environment.device.uuid),
        letters=UUID_LENGTH,
    )


def _commits(records: Sequence[GenerationRecord]) -> list[str]:
    """Another version of what measures is another measurement."""
    return _who_ran_what(
        "versions of benchmarker",
        _variants_by(records, lambda record: record.environment.commit),
        letters=COMMIT_LENGTH,
    )


def _who_ran_what(who: str, variants: dict[str, list[str]], *, letters: int) -> list[str]:
    """Where there are several: each by its first letters, and the variants that it ran."""
    if len(variants) < 2:
        return []
    each = (f"{escaped(one[:letters])} ran {_names(names)}" for one, names in variants.items())
    return [f"{len(variants)} {who}: {'; '.join(each)}."]


def _sweeps(records: Sequence[GenerationRecord]) -> list[str]:
    """Of other hours, and maybe of another machine of the same name."""
    begun: dict[str, set[str]] = {}
    for record in records:
        begun.setdefault(record.variant.name, set()).add(record.sweep or "single runs")
    taken = [name for name, sweeps in begun.items() if len(sweeps) > 1]
    if not taken:
        return []
    of = sorted({sweep for name in taken for sweep in begun[name]})
    return [f"{_names(taken)}: rows are taken together from {len(of)} sweeps: {', '.join(map(escaped, of))}."]


def _tuned_once(records: Sequence[GenerationRecord]) -> list[str]:
    """On a GPU the compiler times candidates, keeps the best, and finds them again in its cache: an interval over
    rounds does not hold what another compilation would have kept."""
    caches: dict[str, list[str]] = {}
    for record in records:
        # Where a layer is compiled for all, it is captured too: that is on a GPU.
        if record.engine and record.engine.compiled == "layer" and record.engine.setup_cache:
            caches.setdefault(record.variant.name, []).append(record.engine.setup_cache)
    once = [name for name, found in caches.items() if len(found) >= MIN_ROUNDS and found.count("cold") <= 1]
    if not once:
        return []
    return [
        f"{_names(once)}: all processes ran the kernels of one compilation. Another one tunes them anew, and may come "
        "out faster or slower by more than the interval."
    ]


def _other_texts(records: Sequence[GenerationRecord]) -> list[str]:
    """Greedy decoding of one model makes one text: where a later round's differs, something is not as it was, or the
    form's arithmetic is not the same each time."""
    firsts: dict[tuple[str | None, str, CellKey], tuple[int, ...]] = {}
    lines: dict[str, str] = {}
    for record in sorted(records, key=lambda each: each.moment):
        name = record.variant.name
        for key, cell in zip(keys_of(record), record.cells, strict=True):
            # Single runs were made at any time, with anything.
            if record.sweep is None or cell.status != "ok" or not cell.first_tokens:
                continue
            first = firsts.setdefault((record.sweep, name, key), cell.first_tokens)
            if first != cell.first_tokens:
                pairs = zip(first, cell.first_tokens, strict=False)
                same = next((place for place, (old, new) in enumerate(pairs) if old != new), len(first))
                lines.setdefault(
                    name,
                    f"{escaped(name)} at {cell_words(key)}: the text of round {record.round + 1} is not that of the "
                    f"first round, from token {same + 1} on.",
                )
    return list(lines.values())


def _variants_by(
    records: Sequence[GenerationRecord], of: Callable[[GenerationRecord], str | None]
) -> dict[str, list[str]]:
    """The variants that have each value, once each; a record that has none is left out."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        if value := of(record):
            found.setdefault(value, {})[record.variant.name] = None
    return {value: list(names) for value, names in found.items()}


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(escaped, names))


def _failed(rows: Sequence[Row]) -> list[str]:
    """One line for each reason, with all the rows that have it; then the rounds that were left out."""
    where: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.status != "ok":
            where.setdefault((row.variant, row.status, row.reason or ""), []).append(row)
    # What stops several variants alike, such as a hub that is out of reach, is said once.
    alike: dict[str, list[str]] = {}
    for (variant, status, reason), found in where.items():
        alike.setdefault(f"{_where(found)}: {_why(status, reason)}", []).append(variant)
    lines = [f"{_names(variants)}{said}" for said, variants in alike.items()]
    lost = [(row, failure) for row in rows for failure in row.failures]
    return lines + [
        f"{escaped(row.variant)}{_where([row])}: round {failure.round + 1} "
        f"{'was measured again' if failure.is_repeated else 'is left out'}: "
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


def _unfinished(records: Sequence[GenerationRecord]) -> list[str]:
    words = {
        "running": "has not finished, or its process died: what it saved so far is used",
        "interrupted": "was interrupted: the cells it finished are used",
    }
    has_rounds = any(record.round for record in records)
    return [
        f"{escaped(record.variant.name)}{f', round {record.round + 1}' if has_rounds else ''}: "
        f"the run {words[record.status]}."
        for record in records
        if record.status in words
    ]


def _unjudged(records: Sequence[GenerationRecord]) -> list[str]:
    found = {("quality", record.variant.name) for record in records if record.quality}
    found |= {("tasks", record.variant.name) for record in records if record.tasks}
    missing = [
        (what, record.variant.name, why.reason)
        for record in records
        for what, why in (("quality", record.no_quality), ("tasks", record.no_tasks))
        if why
    ]
    return [
        f"{escaped(name)}: no {what}: {escaped(reason, longest=REASON_LENGTH)}"
        for what, name, reason in missing
        if (what, name) not in found
    ]


def _clocks(rows: Sequence[Row]) -> list[str]:
    """Two variants at different clocks are two measurements of the board as well."""
    cells: dict[CellKey, dict[str, float]] = {}
    for row in rows:
        if row.cell and row.clock_mhz:
            cells.setdefault(row.cell, {})[row.variant] = row.clock_mhz
    return [
        f"clocks differ at {cell_words(cell)}: "
        + ", ".join(f"{escaped(name)} {clock:.0f} MHz" for name, clock in clocks.items())
        + "."
        for cell, clocks in cells.items()
        if max(clocks.values()) > CLOCKS_WITHIN * min(clocks.values())
    ]


def _drifted(records: Sequence[GenerationRecord]) -> list[str]:
    drift = find_drift(records)
    if drift is None:
        return []
    return [
        f"drift: from the first cell to the last, {duration_words(drift.span_s)}, everything became "
        f"{percent(abs(drift.change), places=1)} {'slower' if drift.change > 0 else 'faster'} (p = {drift.p:.1g}); "
        "rounds in turns share that among the variants."
    ]


def _flagged(rows: Sequence[Row]) -> list[str]:
    where: dict[Flag, list[Row]] = {}
    for row in rows:
        for flag in row.flags:
            where.setdefault(flag, []).append(row)
    return [f"{escaped(flag)}{_meaning(flag)} ({_marked(found)})." for flag, found in where.items()]


def _meaning(flag: Flag) -> str:
    return f": {FLAGS[flag]}"


def _marked(rows: Sequence[Row]) -> str:
    cells: dict[str, int] = {}
    for row in rows:
        cells[row.variant] = cells.get(row.variant, 0) + 1
    return ", ".join(f"{escaped(name)} in {plural(count, 'cell', 'cells')}" for name, count in cells.items())


def _no_energy(records: Sequence[GenerationRecord]) -> list[str]:
    """Once for each reason: it is most often the machine's, not the variant's."""
    reasons = _variants_by(records, lambda record: record.no_energy.reason if record.no_energy else None)
    return [
        f"{_names(names)}: no energy: {escaped(reason, longest=REASON_LENGTH)}." for reason, names in reasons.items()
    ]


def kernel_notes(engine: EngineFacts) -> list[str]:
    """What of a decode step was not a library's own kernel: no other program runs it so."""
    ours = [use.words() for use in engine.kernels_used if use.origin == "benchmarker"]
    return ["; ".join(ours)] if ours else []


def _notes(records: Sequence[GenerationRecord]) -> list[str]:
    notes = [(record, note) for record in records if record.load for note in record.load.notes]
    notes += [(record, note) for record in records if record.engine for note in kernel_notes(record.engine)]
    lines = [f"{escaped(record.variant.name)}: {escaped(note, longest=REASON_LENGTH)}" for record, note in notes]
    return list(dict.fromkeys(lines))
