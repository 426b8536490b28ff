"""Job files: a sweep writes one per variant into its folder; its processes and `run --job` read them.

A job contains the values of the config, not its path: editing the config during a sweep changes nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmarker import __version__
from benchmarker.checkpoints.files import changed_inputs
from benchmarker.core.errors import ChangedError, ResultsError, SpecError, read_problem
from benchmarker.core.formatting import slug
from benchmarker.schema.base import changed_fields, first_problem
from benchmarker.schema.job import Job, Origin
from benchmarker.schema.record import SCHEMA_VERSION, Environment
from benchmarker.schema.record_io import write_atomically
from benchmarker.schema.registry import DEFAULT_WORKLOAD, workload_of

PREFIX = "job-"
MARK = b'"job_version"'
"""First key of every job; records do not have it."""
SHOWN_CHANGES = 3
PROTOCOL_VERSION = 2
"""Increases when cells are measured in another way, so that numbers from before and after are not mixed."""
WHICH_CARD = "_VISIBLE_DEVICES"
"""Ending of the variables that select one of several equal cards."""


def job_path(folder: Path, variant: str) -> Path:
    """Return the path of a variant's job in a sweep's folder."""
    return folder / f"{PREFIX}{slug(variant)}.json"


def write_job(job: Job, folder: Path) -> Path:
    """Save a job and return its path; raises ResultsError."""
    path = job_path(folder, job.variant.name)
    write_atomically(path, job.model_dump_json(indent=1, exclude={"part", "output"}) + "\n")
    return path


def read_job_file(path: Path) -> Job:
    """Read a job, of the class of its workload; raises SpecError."""
    kind: type[Job] = Job
    try:
        text = path.read_bytes()
        kind = workload_of(_workload_in(text)).job
        return kind.model_validate_json(text)
    except OSError as error:
        problem = read_problem(f"--job {path}", error)
        raise SpecError(f"{problem}; a sweep writes job-VARIANT.json") from error
    except SpecError as error:
        raise SpecError(f"--job {path}: {error}; a sweep writes job-VARIANT.json") from error
    except ValidationError as error:
        raise SpecError(f"--job {path}: {first_problem(error, kind)}; a sweep writes job-VARIANT.json") from error


def _workload_in(text: bytes) -> str:
    """Return the workload of a job; the default for text that is not JSON, which is refused later."""
    with contextlib.suppress(ValueError):
        data = json.loads(text)
        if isinstance(data, dict):
            return str(data.get("workload", DEFAULT_WORKLOAD))
    return DEFAULT_WORKLOAD


def saved_jobs(folder: Path | None) -> list[Job]:
    """Return every readable job of a sweep's folder."""
    jobs = []
    for path in sorted(folder.glob(f"{PREFIX}*.json")) if folder else []:
        with contextlib.suppress(SpecError):
            jobs.append(read_job_file(path))
    return jobs


def is_job_file(path: Path) -> bool:
    """Return True for a job, False for the record of a variant whose name begins with `job-`."""
    if not path.name.startswith(PREFIX):
        return False
    with path.open("rb") as file:
        return MARK in file.read(64)


def with_origin(job: Job, environment: Environment, *, config: Path, config_sha256: str, commit: str | None) -> Job:
    """Return the job with the facts that its processes check before they measure.

    Args:
        commit: Hub commit of the model's files; None if unknown.
    """
    origin = Origin(
        config=str(config),
        config_sha256=config_sha256,
        benchmarker=__version__,
        environment=environment,
        keys=tuple(cell_keys(job, environment)),
        inputs=workload_of(job.workload).inputs(job, judged=True),
        commit=commit,
    )
    return job.model_copy(update={"origin": origin})


def result_key(job: Job, point: Any, environment: Environment) -> str:
    """Return a key of everything that determines a cell's result: SHA-256 of canonical JSON, in hex.

    Two cells with one key are interchangeable. The key does not contain the variant's name, the round, the number of
    rounds, the profile, or which of several equal cards it was; a sweep keeps each round on one card.
    """
    device, procedure = environment.device, job.procedure
    determining = {
        "schema": SCHEMA_VERSION,
        "protocol": PROTOCOL_VERSION,
        "benchmarker": {"version": __version__, "commit": environment.commit},
        "workload": job.workload,
        "parts": workload_of(job.workload).key_parts(job),
        "point": job.grid.point_key(point),
        "procedure": {
            "warmup": procedure.warmup,
            "warmup_limit": procedure.warmup_limit,
            "runs": procedure.runs,
        },
        "device": device.model_dump(mode="json", exclude={"index", "uuid"}),
        "host": {"cpu": environment.cpu, "cores": environment.cores, "threads": environment.threads},
        "python": environment.python,
        "packages": environment.packages,
        "variables": {name: value for name, value in environment.variables.items() if not name.endswith(WHICH_CARD)},
    }
    text = json.dumps(determining, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def cell_keys(job: Job, environment: Environment) -> list[str]:
    """Return the key of each cell of the job's grid, by position."""
    return [result_key(job, point, environment) for point in job.grid.points()]


def changed_files(job: Job) -> list[str]:
    """Return the names of the job's input files that changed since a sweep wrote the job."""
    if job.origin is None:
        return []
    is_judged = job.part is None or job.part.only == "quality"
    return changed_inputs(job.origin.inputs, workload_of(job.workload).inputs(job, judged=is_judged))


def check_unchanged(job: Job, environment: Environment) -> None:
    """Check, in a sweep, that everything is as the sweep planned it; raises ChangedError."""
    origin = job.origin
    if origin is None or job.part is None:
        return
    if files := changed_files(job):
        raise ChangedError(f"{_listed(files)} changed since the sweep began; {_way_on(files)}")
    if tuple(cell_keys(job, environment)) == origin.keys:
        return
    changes = changed_fields(origin.environment, environment)
    if origin.benchmarker != __version__:
        changes.insert(0, f"benchmarker: {origin.benchmarker}, then {__version__}")
    raise ChangedError(
        f"{_listed(changes or ['the files of the model or the job file'])} changed since the sweep began: the keys "
        "of these cells differ from the planned ones; begin a new sweep"
    )


def refuse_changed(saved: Sequence[Job], jobs: Sequence[Job]) -> None:
    """Check that the model and the calibration text of a resumed sweep are unchanged.

    Args:
        saved: Jobs of the sweep's folder.
        jobs: Jobs to be measured now, with origins.

    Raises:
        ResultsError: A file has changed.
    """
    before = {job.variant.name: job for job in saved}
    for job in jobs:
        earlier = before.get(job.variant.name)
        if earlier is None or earlier.origin is None:
            continue
        # Texts for quality are checked with the quality: their hashes are in the records. A different model or text
        # has another name, and is no change of the first one.
        now = workload_of(job.workload).inputs(job, judged=False)
        same = {name: text for name, text in now.items() if name in earlier.origin.inputs}
        if changed := changed_inputs(earlier.origin.inputs, same):
            raise ResultsError(f"--resume: {_listed(changed)} changed since this sweep began; {_way_on(changed)}")


def _way_on(changed: Sequence[str]) -> str:
    return f"put {'it' if len(changed) == 1 else 'them'} back, or begin a new sweep"


def _listed(changes: Sequence[str]) -> str:
    more = len(changes) - SHOWN_CHANGES
    return "; ".join(changes[:SHOWN_CHANGES]) + (f"; and {more} more" if more > 0 else "")
