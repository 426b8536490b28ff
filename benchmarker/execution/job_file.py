"""Jobs on disk: what a sweep writes into its folder for each variant, and its processes and `run --job` read.

A job holds what the config said, not where the config is: a config that is edited during a sweep changes nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from benchmarker import __version__
from benchmarker.core.errors import ChangedError, ResultsError, SpecError, read_problem
from benchmarker.core.fingerprint import changed_inputs
from benchmarker.core.formatting import slug
from benchmarker.execution.keys import result_key
from benchmarker.schema.base import changed_fields, first_problem
from benchmarker.schema.environment import Environment
from benchmarker.schema.job import Job, Origin
from benchmarker.schema.record_io import write_atomically
from benchmarker.schema.registry import DEFAULT_WORKLOAD, workload_of

PREFIX = "job-"
MARK = b'"job_version"'
"""The first key of every job, which no record has."""
SHOWN_CHANGES = 3


def job_path(folder: Path, variant: str) -> Path:
    """Where a sweep in that folder keeps the job of a variant."""
    return folder / f"{PREFIX}{slug(variant)}.json"


def write_job(job: Job, folder: Path) -> Path:
    """Save a job, and return where.

    Raises:
        ResultsError: The folder cannot be written to.
    """
    path = job_path(folder, job.variant.name)
    write_atomically(path, job.model_dump_json(indent=1, exclude={"part", "output"}) + "\n")
    return path


def read_job_file(path: Path) -> Job:
    """The job in a file, of the class that its workload has.

    Raises:
        SpecError: There is none, or it was edited into something that cannot be run.
    """
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
    """The workload that a job says it is of; the default where it is not JSON, which is said when it is read."""
    with contextlib.suppress(ValueError):
        data = json.loads(text)
        if isinstance(data, dict):
            return str(data.get("workload", DEFAULT_WORKLOAD))
    return DEFAULT_WORKLOAD


def saved_jobs(folder: Path | None) -> list[Job]:
    """Every job of a sweep's folder that can be read; none for a folder from before jobs were saved."""
    jobs = []
    for path in sorted(folder.glob(f"{PREFIX}*.json")) if folder else []:
        with contextlib.suppress(SpecError):
            jobs.append(read_job_file(path))
    return jobs


def is_job_file(path: Path) -> bool:
    """Whether it is a job, and not the record of a variant whose name begins with `job-`."""
    if not path.name.startswith(PREFIX):
        return False
    with path.open("rb") as file:
        return MARK in file.read(64)


def with_origin(job: Job, environment: Environment, *, config: Path, config_sha256: str, commit: str | None) -> Job:
    """The job with all that its processes check before they measure.

    Args:
        commit: Hub commit of the model's files; None where it is not known.
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


def cell_keys(job: Job, environment: Environment) -> list[str]:
    """`key` of each cell of the job's grid, by position."""
    return [result_key(job, point, environment) for point in job.grid.points()]


def changed_files(job: Job) -> list[str]:
    """Names of the job's files that are not what they were when a sweep wrote it."""
    if job.origin is None:
        return []
    is_judged = job.part is None or job.part.only == "quality"
    return changed_inputs(job.origin.inputs, workload_of(job.workload).inputs(job, judged=is_judged))


def check_unchanged(job: Job, environment: Environment) -> None:
    """Refuse to measure, in a sweep, what is not what the sweep planned.

    Raises:
        ChangedError: A file, a library, a setting or this program is another one now.
    """
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
        "of these cells are not those that it planned; begin a new sweep"
    )


def refuse_changed(saved: Sequence[Job], jobs: Sequence[Job]) -> None:
    """Refuse to go on with a sweep whose model or calibration text is another one now.

    Args:
        saved: Jobs of the sweep's folder.
        jobs: What is to be measured now, with origins.

    Raises:
        ResultsError: With what has changed.
    """
    before = {job.variant.name: job for job in saved}
    for job in jobs:
        earlier = before.get(job.variant.name)
        if earlier is None or earlier.origin is None:
            continue
        # A text for quality is looked at where quality is: its hash is in the records. Another model or text than
        # before has another name, and is no change of the first.
        now = workload_of(job.workload).inputs(job, judged=False)
        same = {name: text for name, text in now.items() if name in earlier.origin.inputs}
        if changed := changed_inputs(earlier.origin.inputs, same):
            raise ResultsError(f"--resume: {_listed(changed)} changed since this sweep began; {_way_on(changed)}")


def _way_on(changed: Sequence[str]) -> str:
    return f"put {'it' if len(changed) == 1 else 'them'} back, or begin a new sweep"


def _listed(changes: Sequence[str]) -> str:
    more = len(changes) - SHOWN_CHANGES
    return "; ".join(changes[:SHOWN_CHANGES]) + (f"; and {more} more" if more > 0 else "")
