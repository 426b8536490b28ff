"""Comparisons with explanations, which a notebook shows as tables.

from benchmarker import compare
compare(["results/nvidia-h100"])
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from benchmarker.comparison.comparable import DifferingRecordsError
from benchmarker.comparison.results import results_of, results_of_records, to_rows
from benchmarker.comparison.rows import Results, with_bound
from benchmarker.core import tables
from benchmarker.core.errors import ResultsError
from benchmarker.core.formatting import abridged
from benchmarker.explain.explain import Contrast, contrasts_of, explain
from benchmarker.explain.values import Explanation, NotExplained, bounds_of
from benchmarker.report.explanations import reasons
from benchmarker.report.markdown import brief, summary, to_markdown
from benchmarker.schema import record_io
from benchmarker.schema.record import RunRecord
from benchmarker.schema.record_io import Collected, collect

__all__ = ["Comparison", "compare", "compare_collected", "compare_records", "to_markdown", "to_rows"]


NAMED = 20
"""Number of folders that an error lists."""
SEVERAL = 3
"""Number of folders from which one of them was probably meant, and a list of differences is useless."""


@dataclass(frozen=True)
class Comparison(Results):
    """Rows of all variants, with the explanation of each."""

    explained: tuple[Explanation | NotExplained, ...] = ()
    """Explanations in the order of the rows."""
    contrasts: tuple[Contrast, ...] = ()
    """Each explained variant compared with the baseline, part by part."""

    def _repr_markdown_(self) -> str:
        return to_markdown(self)

    def __str__(self) -> str:
        return tables.to_markdown(brief(self))


def compare(
    paths: str | Path | Sequence[str | Path], *, baseline: str | None = None, force: bool = False
) -> Comparison:
    """Read all records below these paths and compare their variants.

    Args:
        paths: Records, or folders with records anywhere below them. A single path needs no list.
        baseline: Variant to which all others are compared. Default: see `comparison.results.results_of`.
        force: Compare also records that differ in device, model or versions.

    Raises:
        ResultsError: No record, no such baseline, or records that do not compare.
    """
    collected = collect([paths] if isinstance(paths, str | Path) else paths)
    try:
        return compare_collected(collected, baseline=baseline, force=force)
    except ResultsError as error:
        folders = sorted({str(path.parent) for path, _ in collected.files})
        if len(folders) < SEVERAL:
            if len(folders) > 1 and isinstance(error, DifferingRecordsError):
                raise ResultsError(f"{error}. They are in {' and '.join(folders)}") from error
            raise
        above = os.path.commonpath(folders)
        names = abridged([os.path.relpath(folder, above) for folder in folders], NAMED)
        raise ResultsError(
            f"{len(folders)} folders of records, which do not all compare; give one of those in {above}: {names}"
        ) from error


def compare_collected(collected: Collected, *, baseline: str | None = None, force: bool = False) -> Comparison:
    """Compare records that were collected. Otherwise as `compare`."""
    return _with_reasons(results_of(collected, baseline=baseline, force=force))


def compare_records(records: Sequence[RunRecord], *, baseline: str | None = None, force: bool = False) -> Comparison:
    """Compare records in memory. Otherwise as `compare`."""
    return _with_reasons(results_of_records(records, baseline=baseline, force=force))


def _with_reasons(results: Results) -> Comparison:
    plain: dict[str, Any] = {field.name: getattr(results, field.name) for field in fields(Results)}
    explained = tuple(explain(name, members) for name, members in results.members.items())
    verdicts = {(row.variant, row.cell): row.call.verdict if row.call else None for row in results.rows if row.cell}
    # A difference of records compared by --force may be that of devices or versions.
    contrasts = () if results.differences else contrasts_of(explained, results.baseline or "", verdicts)
    bounds = bounds_of(explained)
    return replace(
        Comparison(**plain),
        rows=tuple(with_bound(row, bounds) for row in results.rows),
        reasons=reasons(explained),
        explained=explained,
        contrasts=contrasts,
    )


class ShownRecord(RunRecord):
    """A record that a notebook shows as the table of its run."""

    def _repr_markdown_(self) -> str:
        return summary(self)


def read_record(path: str | Path) -> ShownRecord:
    """Read one record. It has the class of its workload too.

    Raises:
        ResultsError: No such record, or an unreadable one.
    """
    record = record_io.read_record(Path(path))
    # The workload's fields come before those of any record.
    kind = type(ShownRecord.__name__, (type(record), ShownRecord), {"__module__": __name__})
    return cast("type[ShownRecord]", kind).model_construct(**dict(record))
