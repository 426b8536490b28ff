"""Does every stated number follow from the raw samples? For those who read someone else's results, or edited their own.

Two kinds of statement are checked: those that a record makes beside its samples (memory maxima, the profile's sums,
bits per weight), and those that `compare` makes from records, computed again by code of its own (recompute.py).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarker.comparison.comparable import check_comparable, named_variants
from benchmarker.comparison.compare import results_of
from benchmarker.comparison.comparing import comparing_of
from benchmarker.comparison.recompute import (
    Numbers,
    Raw,
    detectable,
    numbers_of,
    quality_of,
    ratio,
    spreads_of,
    times_by_round,
    verdict,
)
from benchmarker.comparison.rows import CellKey, Results, Row
from benchmarker.comparison.words import cell_words
from benchmarker.schema.collect import Collected, collect
from benchmarker.schema.quality import Quality
from benchmarker.schema.record_io import parse_json, read_bytes
from benchmarker.schema.roofline import Limits
from benchmarker.workloads.generation.record import GenerationCell, GenerationProfile, GenerationRecord
from benchmarker.workloads.generation.roofline import MBU_LIMIT, mbu

TOLERANCE = 1e-7
"""Relative: above the rounding of a float and the accuracy of scipy's inverses, far below anything a table shows."""
DRAIN_S, DRAIN_SHARE = 0.05, 0.10
"""The last token is known before the device is drained; longer than both of these is not draining."""


@dataclass(frozen=True)
class Mismatch:
    """One number that does not follow from the samples."""

    file: str
    """The record, or the variant of a table's row."""
    place: str
    """Cell or part of the record."""
    field: str
    stated: str
    recomputed: str

    def __str__(self) -> str:
        return f"{self.file}: {self.place}: {self.field} is {self.stated}, but the samples give {self.recomputed}"


@dataclass(frozen=True)
class Verified:
    """What was checked, and what did not hold."""

    records: int
    numbers: int
    """How many statements were checked."""
    mismatches: tuple[Mismatch, ...]
    problems: tuple[str, ...]
    """Files that could not be read."""

    @property
    def is_right(self) -> bool:
        """Everything could be read, and everything matched."""
        return not self.mismatches and not self.problems


@dataclass(frozen=True)
class _Check:
    place: str
    field: str
    stated: Any
    recomputed: Any
    holds: bool


def verify(paths: Sequence[str | Path]) -> Verified:
    """Check all records below these paths, and the table that they make.

    Raises:
        ResultsError: There is no record.
    """
    collected = collect(paths)
    files = collected.files_of(GenerationRecord)
    checks = [(str(path), check) for path, record in files for check in _record_checks(record)]
    checks += [(f"table, {row.variant}", check) for row, check in _table_checks(collected)]
    wrong = [
        Mismatch(file, check.place, check.field, str(check.stated), str(check.recomputed))
        for file, check in checks
        if not check.holds
    ]
    return Verified(len(collected.files), len(checks), tuple(wrong), collected.problems)


def _record_checks(record: GenerationRecord) -> Iterator[_Check]:
    for cell in record.cells:
        if cell.status == "ok":
            yield from _cell_checks(cell)
            if record.imported is None and "runs" in record.procedure:
                # None is ever dropped.
                yield _equal(_place(cell), "number of samples", len(cell.samples), record.procedure["runs"])
            yield from _limit_checks(cell, record.limits)
    if record.load:
        bits = 8 * record.load.weight_bytes / record.load.parameters
        yield _equal("load", "bits_per_weight", record.load.bits_per_weight, bits)
    if record.engine and record.engine.recompilations and any(cell.status == "ok" for cell in record.cells):
        count = record.engine.recompilations
        yield _Check("runtime", "recompilations", count, "none in a cell that is ok", holds=False)
    if record.profile:
        yield from _profile_checks(record.profile)
    if record.quality:
        yield from _quality_checks(record.quality)


def _cell_checks(cell: GenerationCell) -> Iterator[_Check]:
    place = _place(cell)
    yield _Check(place, "samples", len(cell.samples), "at least one for a cell that is ok", holds=bool(cell.samples))
    for number, one in enumerate(cell.samples, start=1):
        where = f"{place}, run {number}"
        yield _equal(where, "new_tokens", one.new_tokens, cell.new_tokens)
        if one.ttft_s is not None:
            steps = one.new_tokens - 1
            has_tpot = one.tpot_s is not None
            expected = "a time" if steps else "none for a single token"
            yield _Check(where, "tpot_s", one.tpot_s, expected, holds=has_tpot == bool(steps))
            known_s = one.ttft_s + steps * (one.tpot_s or 0.0)
            most_s = known_s + max(DRAIN_S, DRAIN_SHARE * one.latency_s)
            fits = known_s * (1 - TOLERANCE) <= one.latency_s and (one.latency_s <= most_s or has_tpot != bool(steps))
            yield _Check(where, "latency_s", one.latency_s, f"{known_s} for first token and steps", holds=fits)
    peaks = [one.peak_allocated_bytes for one in cell.samples if one.peak_allocated_bytes is not None]
    stated = cell.memory.peak_allocated_bytes
    if peaks or stated is not None:
        yield _equal(place, "memory.peak_allocated_bytes", stated, max(peaks, default=None))
    if stated is not None and cell.memory.peak_reserved_bytes is not None:
        reserved = cell.memory.peak_reserved_bytes
        yield _Check(
            place, "memory.peak_reserved_bytes", reserved, f"at least {stated} allocated", holds=reserved >= stated
        )


def _place(cell: GenerationCell) -> str:
    depth = f", depth {cell.depth}" if cell.depth else ""
    return f"cell {cell.prompt_tokens} x {cell.new_tokens} x {cell.batch_size}{depth}"


def _limit_checks(cell: GenerationCell, limits: Limits | None) -> Iterator[_Check]:
    """Nothing is faster than its memory, unless it stays in a cache."""
    tpots = [one.tpot_s for one in cell.samples if one.tpot_s is not None]
    if limits and cell.demand and tpots and cell.demand.step_bytes > (limits.cache_bytes or 0):
        used = mbu(cell.demand, limits, tpot_s=statistics.median(tpots))
        place = f"cell {cell.prompt_tokens} x {cell.new_tokens} x {cell.batch_size}"
        yield _Check(place, "mbu", used, f"at most {MBU_LIMIT}", holds=used <= MBU_LIMIT)


def _quality_checks(quality: Quality) -> Iterator[_Check]:
    stated = quality.model_dump()
    for field, recomputed in quality_of(stated["windows"]).items():
        group, _, name = field.rpartition(".")
        yield _equal("quality", field, (stated[group] if group else stated)[name], recomputed)


def _profile_checks(profile: GenerationProfile) -> Iterator[_Check]:
    totals = [kernel.total_s for kernel in profile.kernels]
    kernel_s = math.fsum(totals)
    yield _equal("profile", "kernel_s", profile.kernel_s, kernel_s)
    if kernel_s > 0:
        percent = math.fsum(100 * total_s / profile.kernel_s for total_s in totals) if profile.kernel_s else 0.0
        yield _equal("profile", "sum of percentages", percent, 100.0)
    most_s = min(kernel_s, profile.span_s) if profile.by == "device" else kernel_s
    yield _Check(
        "profile",
        "busy_s",
        profile.busy_s,
        f"at most {most_s}, the sum of the kernels and their span",
        holds=profile.busy_s <= most_s * (1 + TOLERANCE),
    )
    for name, section in profile.sections.items():
        times = (kernel.sections[name] for kernel in profile.kernels if name in kernel.sections)
        alone = [time.alone_s for time in times if time.alone_s is not None]
        if alone:
            yield _equal("profile", f"sections.{name}.busy_s", section.busy_s, math.fsum(alone))
    yield _Check("profile", "kernels", "out of order", "longest first", holds=totals == sorted(totals, reverse=True))


def _table_checks(collected: Collected) -> Iterator[tuple[Row, _Check]]:
    """Every number of every row of the comparison that these records make."""
    comparison = results_of(collected, force=True)
    records = collected.records_of(GenerationRecord)
    differences = check_comparable(records, force=True)
    variants = named_variants(records, differences)
    files = {id(record): path for path, record in collected.files}
    raw = {
        name: [parse_json(read_bytes(files[id(record)]), files[id(record)]) for record in members]
        for name, (_, members) in variants.items()
    }
    circumstances = {name: identity.circumstances for name, (identity, _) in variants.items()}
    ratios = _ratios(comparison, raw, circumstances)
    all_p = [p for _, p in ratios.values() if p is not None]
    for index, row in enumerate(comparison.rows):
        if row.cell is None or row.status != "ok":
            continue
        own, shape = raw[row.variant], _shape(row.cell)
        expected: dict[str, Any] = {**numbers_of(own, shape), **spreads_of(own, shape)}
        if index in ratios:
            numbers, p = ratios[index]
            expected |= {field: numbers[field] for field in ("ratio", "ratio_low", "ratio_high")}
            expected |= {"detectable": detectable(numbers, len(all_p)), "verdict": verdict(numbers, p, all_p)}
        stated = _stated(row, tests=len(all_p))
        for field, value in expected.items():
            yield row, _equal(cell_words(row.cell), field, stated[field], value)


def _ratios(
    comparison: Results, raw: dict[str, list[Raw]], circumstances: dict[str, tuple[str | None, ...]]
) -> dict[int, tuple[Numbers, float | None]]:
    baseline = comparison.baseline or ""
    found = {}
    for index, row in enumerate(comparison.rows):
        if row.cell is None or row.variant == baseline or row.ratio is None:
            continue
        base, own = (times_by_round(raw[name], _shape(row.cell), "latency_s") for name in (baseline, row.variant))
        is_paired = circumstances[baseline] == circumstances[row.variant]
        found[index] = ratio(base, own, is_paired=is_paired)
    return found


def _stated(row: Row, *, tests: int) -> dict[str, Any]:
    """All of a row's numbers, by the names they have in recompute.py."""
    estimates = {
        "latency_s": row.latency,
        "ttft_s": row.metrics.get("ttft"),
        "tpot_s": row.metrics.get("tpot"),
        "tokens_per_s": row.rate,
    }
    spreads = {
        f"{field} {part}": getattr(measured, part) if measured else None
        for field, measured in estimates.items()
        for part in ("low", "high", "deviation")
    }
    return {
        **comparing_of(row.workload).to_row(row),
        **spreads,
        "detectable": row.ratio.detectable(tests) if row.ratio else None,
    }


def _shape(key: CellKey) -> tuple[int, int, int, int, int]:
    return key.batch_size, key.prompt_tokens, key.new_tokens, key.text, key.depth


def _equal(place: str, field: str, stated: Any, recomputed: Any) -> _Check:
    if isinstance(stated, int | float) and isinstance(recomputed, int | float):
        holds = math.isclose(stated, recomputed, rel_tol=TOLERANCE, abs_tol=1e-15)
    else:
        holds = stated == recomputed
    return _Check(place, field, stated, recomputed, holds)
