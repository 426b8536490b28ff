"""Records on disk: written in one step, so that a file is complete or absent; a defective file is a one-line error."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmarker.core.errors import ResultsError, did_you_mean, read_problem, write_problem
from benchmarker.core.process import no_garbage_collection
from benchmarker.schema.base import Plain, first_problem
from benchmarker.schema.record import SCHEMA_VERSION, RunRecord
from benchmarker.schema.registry import WORKLOADS, workload_of

UNFINISHED = ".benchmarker.tmp"  # Ending of a file that is being written. A resumed sweep removes such files only.


def write_json(model: Plain, path: Path) -> None:
    """Replace the file in one step, so that a reader never sees half a record. Raises ResultsError."""
    write_atomically(path, model.model_dump_json(indent=1) + "\n")


def check_writable(folder: Path) -> None:
    """Make the folder if necessary; raises ResultsError if no file can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = f"results cannot be written there ({os.strerror(error.errno or 0)})"
        raise ResultsError(f"{folder}: {reason}; choose another folder with --output") from error


def write_atomically(path: Path, text: str) -> None:
    """Write a file beside `path`, flush it to the disk, and rename it. Raises ResultsError."""
    temporary = path.parent / f".{path.name[:60]}.{secrets.token_hex(4)}{UNFINISHED}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise _not_saved(path, error) from error


def _not_saved(path: Path, error: OSError) -> ResultsError:
    return ResultsError(f"{path}: not saved: {write_problem(error, remedy='choose another folder with --output')}")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_record(path: Path) -> RunRecord:
    return parse_record(read_bytes(path), path)


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ResultsError(read_problem(path, error)) from error


def parse_record(text: bytes, path: Path) -> RunRecord:
    data = parse_json(text, path)
    name = data.get("workload")
    if not isinstance(name, str):
        raise ResultsError(f"{path}: workload: it names none; it was edited")
    if name not in WORKLOADS:
        raise ResultsError(f"{path}: workload: this benchmarker has no '{name}'{did_you_mean(name, WORKLOADS)}")
    kind = workload_of(name).record
    try:
        return kind.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise ResultsError(f"{path}: {first_problem(error, kind)}") from error


def parse_json(text: bytes, path: Path) -> dict[str, Any]:
    try:
        data: Any = json.loads(text)
    except ValueError as error:
        if path.suffix != ".json":
            raise ResultsError(f"{path}: not a record, which is a JSON file") from error
        raise ResultsError(f"{path}: not valid JSON ({error}); it may have been cut short") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise ResultsError(f"{path}: not a benchmarker record (no schema_version)")
    if version < 1:
        raise ResultsError(f"{path}: there is no schema {version}; it was edited")
    if version > SCHEMA_VERSION:
        raise ResultsError(
            f"{path}: schema {version} is newer than this benchmarker's {SCHEMA_VERSION}; upgrade benchmarker"
        )
    if version < SCHEMA_VERSION:
        raise ResultsError(f"{path}: schema {version} is not read any more; run the command again")
    return dict(data)


RUN_ORDER = "order.jsonl"


class OrderLine(Plain):
    """One measuring process of a sweep."""

    round: int
    variant: str
    pid: int
    start: float
    end: float
    worker: str | None
    device: str
    """UUID of the device, or its name if it has none."""


def read_order(folder: Path) -> list[OrderLine]:
    """Return the processes of a sweep in the order of their ends; [] without a file. Raises ValueError and OSError."""
    path = folder / RUN_ORDER
    texts = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [OrderLine.model_validate_json(text) for text in texts]


def append_lines(folder: Path, lines: bytes) -> None:
    """Append complete lines in one write, so that processes do not interleave."""
    path = folder / RUN_ORDER
    try:
        with path.open("ab", buffering=0) as file:
            file.write(lines)
    except OSError as error:
        raise _not_saved(path, error) from error


RECORD_BEGINS = re.compile(rb'\s*\{\s*"schema_version"\s*:')
SWEEP_FILE = "sweep.json"
LOCK_OWNER = ".lock-owner"  # Exists while a sweep writes to the folder.


@dataclass(frozen=True)
class Collected:
    files: tuple[tuple[Path, RunRecord], ...]
    problems: tuple[str, ...]
    baseline: str | None = None  # Baseline that all sweep files name; None if they differ.
    resume: str = ""  # Command that adds rounds to the sweep; empty if the records are not all of one sweep.

    @property
    def records(self) -> tuple[RunRecord, ...]:
        return tuple(record for _, record in self.files)


def collect(paths: Sequence[str | Path]) -> Collected:
    """Read all records in these files and folders. Raises ResultsError if nothing in them could be used.

    A copy of a record (equal run_id, start, variant and round) counts once. Other JSON files in a folder are ignored.
    """
    unique: dict[tuple[object, ...], tuple[Path, RunRecord]] = {}
    problems: list[str] = []
    # Disabled: reading makes no garbage, and repeated collections over all records took 3/4 of the time.
    with no_garbage_collection():
        for path, is_named in _candidates(paths):
            try:
                text = read_bytes(path)
                if is_named or _claims_to_be_a_record(text):
                    record = parse_record(text, path)
                    key = record.run_id, record.started_at, record.variant.name, record.round
                    unique.setdefault(key, (path, record))
            except ResultsError as error:
                problems.append(str(error))
    if not unique:
        raise ResultsError(_nothing_found(paths, problems))
    folders = {path.parent for path, _ in unique.values()}
    sweeps = [_sweep_file(folder) for folder in folders]
    baselines = {sweep.get("baseline") for sweep in sweeps}
    config = sweeps[0].get("config") if len(sweeps) == 1 else None
    # A folder without saved jobs, as in results/reference, is of another machine: a new sweep is necessary.
    saved = [word for folder in folders if any(folder.glob("job-*.json")) for word in ("--resume", str(folder))]
    words = saved or sweeps[0].get("arguments", ())
    resume = shlex.join(["benchmarker", "sweep", config, *map(str, words)]) if config else ""
    baseline = baselines.pop() if len(baselines) == 1 else None
    return Collected(tuple(unique.values()), tuple(problems), baseline, resume)


def side_paths(paths: Sequence[str | Path]) -> dict[str, list[Path]]:
    """Group the paths by folder; the keys are the shortest names that distinguish the folders."""
    folders: dict[Path, list[Path]] = {}
    for path in map(Path, paths):
        folders.setdefault((path.parent if path.is_file() else path).resolve(), []).append(path)
    parts = [folder.parts for folder in folders]
    lengths = range(1, max(map(len, parts), default=1))
    depth = next((length for length in lengths if len({each[-length:] for each in parts}) == len(parts)), 1)
    return {"/".join(folder.parts[-depth:]): members for folder, members in folders.items()}


def _sweep_file(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / SWEEP_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    kinds = {"config": str, "baseline": str, "arguments": list} if isinstance(content, dict) else {}
    return {name: content[name] for name, kind in kinds.items() if isinstance(content.get(name), kind)}


def _candidates(paths: Sequence[str | Path]) -> Iterator[tuple[Path, bool]]:
    visited: set[Path] = set()
    for argument in map(Path, paths):
        if not argument.exists():
            raise ResultsError(f"{argument}: no such file or folder; give a record or a folder of records")
        for path in [argument] if argument.is_file() else _json_files(argument):
            if (where := path.resolve()) not in visited:
                visited.add(where)
                yield path, path is argument


def _json_files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(names) if name.endswith(".json"))


def record_paths(folder: Path) -> list[Path]:
    """Return the records of a folder without its subfolders, damaged ones included, in the order of their names."""
    return [path for path in sorted(folder.glob("*.json")) if _claims_to_be_a_record(read_bytes(path))]


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
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return f"no record can be used; {problems[0]}{more}"
    return f"{', '.join(map(str, paths)) or 'no path'}: no records there; `benchmarker run` writes them"
