"""Search for records in files and folders.

A broken file costs one line: the rest is used, and the report lists the omitted files.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarker.core.errors import ResultsError
from benchmarker.core.process import no_garbage_collection
from benchmarker.schema.record import RunRecord
from benchmarker.schema.record_io import parse_record, read_bytes

RECORD_BEGINS = re.compile(rb'\s*\{\s*"schema_version"\s*:')
"""As this program writes one; an edited one may have its keys in another order."""
SWEEP_FILE = "sweep.json"
"""File with a sweep's request, beside its records."""


@dataclass(frozen=True)
class Collected:
    """Records below some paths."""

    files: tuple[tuple[Path, RunRecord], ...]
    """Every record once, in the order of their names."""
    problems: tuple[str, ...]
    """One line for each file that should be a record and is not."""
    baseline: str | None = None
    """Variant with which all sweeps among them compared. None if they differ or have none."""

    @property
    def records(self) -> tuple[RunRecord, ...]:
        return tuple(record for _, record in self.files)


def collect(paths: Sequence[str | Path]) -> Collected:
    """Read all records in these files and folders.

    A copy of a record (equal run_id, start, variant and round) counts once. Other JSON in a folder, such as a trace,
    is passed over; a file that is named outright must be a record.

    Raises:
        ResultsError: A path is not there, or nothing in them could be used.
    """
    unique: dict[tuple[object, ...], tuple[Path, RunRecord]] = {}
    problems: list[str] = []
    # Reading makes none, and walking through all the records again and again took 3/4 of the time.
    with no_garbage_collection():
        for path, is_named in _candidates(paths):
            try:
                record = _read(path, is_named=is_named)
            except ResultsError as error:
                problems.append(str(error))
                continue
            if record:
                unique.setdefault((record.run_id, record.started_at, record.variant.name, record.round), (path, record))
    if not unique:
        raise ResultsError(_nothing_found(paths, problems))
    folders = dict.fromkeys(path.parent for path, _ in unique.values())
    baselines = {_baseline(folder) for folder in folders}
    return Collected(tuple(unique.values()), tuple(problems), baselines.pop() if len(baselines) == 1 else None)


def _baseline(folder: Path) -> str | None:
    try:
        baseline = json.loads((folder / SWEEP_FILE).read_bytes()).get("baseline")
    except (OSError, ValueError, AttributeError):
        return None
    return baseline if isinstance(baseline, str) else None


def _candidates(paths: Sequence[str | Path]) -> Iterator[tuple[Path, bool]]:
    visited: set[Path] = set()
    for argument in map(Path, paths):
        if not argument.exists():
            raise ResultsError(f"{argument}: no such file or folder; give a record or a folder of records")
        for path in [argument] if argument.is_file() else _json_files(argument):
            where = path.resolve()
            if where not in visited:
                visited.add(where)
                yield path, path is argument


def _json_files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(names) if name.endswith(".json"))


def _read(path: Path, *, is_named: bool) -> RunRecord | None:
    text = read_bytes(path)
    if not is_named and not _claims_to_be_a_record(text):
        return None
    return parse_record(text, path)


def _claims_to_be_a_record(text: bytes) -> bool:
    if b'"schema_version"' not in text:
        return False
    if RECORD_BEGINS.match(text):
        return True
    try:
        content = json.loads(text)
    except ValueError:
        return True
    return isinstance(content, dict) and "schema_version" in content


def _nothing_found(paths: Sequence[str | Path], problems: Sequence[str]) -> str:
    where = ", ".join(map(str, paths)) or "no path"
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return f"{where}: no record can be used; {problems[0]}{more}"
    return f"{where}: no records there; `benchmarker run` writes them"
