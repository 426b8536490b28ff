"""Checks of one record of any workload: sums, maxima and counts are right, and no part exceeds its total."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarker.comparison.roofline import floor_of
from benchmarker.comparison.rows import keys_of
from benchmarker.schema.record import CellBase, Profile, RunRecord
from benchmarker.schema.registry import workload_of

TOLERANCE = 1e-7
"""Relative tolerance: above the errors of float rounding and of scipy's quantiles, far below the last printed digit."""
FLOOR_LIMIT = 1.02  # Largest quotient (least possible time) / latency that passes. A larger one is an error.
SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Check:
    """Stated value of a field in a record or a table, and the value that is recomputed from the samples."""

    place: str
    field: str
    stated: Any
    recomputed: Any
    holds: bool
    file: str = ""  # Path of the record, or the name of the variant in a table.

    def __str__(self) -> str:
        return f"{self.file}: {self.place}: {self.field} is {self.stated}, but the samples give {self.recomputed}"


def equal(place: str, field: str, stated: Any, recomputed: Any) -> Check:
    # Integers are compared exactly: an integer in an edited record may be too large for a float.
    if isinstance(stated, int) and isinstance(recomputed, int):
        holds = stated == recomputed
    elif isinstance(stated, int | float) and isinstance(recomputed, int | float):
        holds = math.isclose(stated, recomputed, rel_tol=TOLERANCE, abs_tol=1e-15)
    else:
        holds = stated == recomputed
    return Check(place, field, stated, recomputed, holds)


def record_checks(record: RunRecord) -> Iterator[Check]:
    places = [f"cell {key.words}" for key in keys_of(record)]
    for place, cell in zip(places, record.cells, strict=True):
        if cell.inputs_sha256 is not None:
            is_hash = SHA256.fullmatch(cell.inputs_sha256) is not None
            yield Check(place, "inputs_sha256", cell.inputs_sha256, "64 hexadecimal digits", is_hash)
        if cell.status == "ok":
            yield from _cell_checks(place, cell, record)
            if record.imported is None and "runs" in record.procedure:
                # A measurement drops no sample, not even an outlier.
                yield equal(place, "number of samples", len(cell.samples), record.procedure["runs"])
    if record.profile:
        yield from _profile_checks(record.profile)
    yield from workload_of(record.workload).checks(record)


def _cell_checks(place: str, cell: CellBase, record: RunRecord) -> Iterator[Check]:
    yield Check(place, "samples", len(cell.samples), "at least one for a cell that is ok", holds=bool(cell.samples))
    for number, sample in enumerate(cell.samples, start=1):
        if sample.parts_s:
            parts_s, most_s = math.fsum(sample.parts_s.values()), sample.latency_s * (1 + TOLERANCE)
            expected = f"at most the {sample.latency_s} of the whole"
            yield Check(f"{place}, run {number}", "parts_s", parts_s, expected, holds=parts_s <= most_s)
    peaks = [sample.peak_allocated_bytes for sample in cell.samples if sample.peak_allocated_bytes is not None]
    stated = cell.memory.peak_allocated_bytes
    # Of an engine in its own process, the driver reports one memory growth for all repeats, and no reserved memory.
    if peaks or cell.memory.peak_reserved_bytes is not None:
        yield equal(place, "memory.peak_allocated_bytes", stated, max(peaks, default=None))
    if stated is not None and (reserved := cell.memory.peak_reserved_bytes) is not None:
        expected = f"at least {stated} allocated"
        yield Check(place, "memory.peak_reserved_bytes", reserved, expected, holds=reserved >= stated)
    if cell.checked:
        error, most = cell.checked.error, cell.checked.tolerance
        yield Check(place, "checked.error", error, f"at most {most} for a cell that is ok", holds=error <= most)
    yield from _floor_checks(place, cell, record)


def _floor_checks(place: str, cell: CellBase, record: RunRecord) -> Iterator[Check]:
    demand, limits = cell.demand, record.limits
    floor = floor_of(demand, limits)
    if not floor or not demand or not limits or not cell.samples:
        return
    if demand.bytes is None or demand.bytes > (limits.cache_bytes or 0):
        latency_s = min(sample.latency_s for sample in cell.samples)
        holds = floor.seconds <= latency_s * FLOOR_LIMIT
        yield Check(place, "latency_s", latency_s, f"at least {floor.seconds}, its floor on this device", holds)


def _profile_checks(profile: Profile) -> Iterator[Check]:
    totals = [kernel.total_s for kernel in profile.kernels]
    kernel_s = math.fsum(totals)
    yield equal("profile", "kernel_s", profile.kernel_s, kernel_s)
    if kernel_s > 0:
        percent = math.fsum(100 * total_s / profile.kernel_s for total_s in totals) if profile.kernel_s else 0.0
        yield equal("profile", "sum of percentages", percent, 100.0)
    most_s = min(kernel_s, profile.span_s) if profile.by == "device" else kernel_s
    expected, fits = f"at most {most_s}, the sum of the kernels and their span", most_s * (1 + TOLERANCE)
    yield Check("profile", "busy_s", profile.busy_s, expected, holds=profile.busy_s <= fits)
    for name, section in profile.sections.items():
        times = (kernel.sections[name] for kernel in profile.kernels if name in kernel.sections)
        alone = [time.alone_s for time in times if time.alone_s is not None]
        if alone:
            yield equal("profile", f"sections.{name}.busy_s", section.busy_s, math.fsum(alone))
    yield Check("profile", "kernels", "out of order", "longest first", holds=totals == sorted(totals, reverse=True))
