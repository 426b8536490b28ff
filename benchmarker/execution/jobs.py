"""Jobs: made from a config file and options, saved by a sweep, and checked by the sweep's processes.

An option overrides the config's key. A sweep saves one job file per variant; the processes of the sweep and
`run --job` read it. A job file contains the values of the config, so that editing the config changes no running sweep.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from benchmarker import __version__
from benchmarker.checkpoints.files import changed_inputs
from benchmarker.core.errors import ChangedError, ResultsError, SpecError, did_you_mean, read_problem
from benchmarker.core.formatting import slug
from benchmarker.schema.base import Plain, changed_fields, first_problem
from benchmarker.schema.config_io import parse_option, read_experiment, resolved, validated
from benchmarker.schema.job import ExperimentBase, Job, Origin, VariantBase
from benchmarker.schema.options import flags_of, is_group, option_kind
from benchmarker.schema.record import SCHEMA_VERSION, Environment, RunRecord
from benchmarker.schema.record_io import write_atomically
from benchmarker.schema.registry import DEFAULT_WORKLOAD, workload_of

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload

Typed = Mapping[str, Any]
"""Values of options by their path in the job, such as `grid.new_tokens`; None for an option that is not given."""
WHERE = "command line"
PREFIX = "job-"
CARD_FIELDS = ("device.index:", "device.uuid:", "variables.CUDA_VISIBLE_DEVICES:", "variables.HIP_VISIBLE_DEVICES:")
"""Fields of the environment that differ between GPUs of a type, and are in no cell's key."""
PROTOCOL_VERSION = 2
"""Version of the measurement procedure. Results of different versions are not mixed."""


def make_job(
    typed: Typed,
    *,
    workload: str | None = None,
    config: Path | None = None,
    variant: str | None = None,
    device: str = "auto",
    output: Path | None = None,
    reproduce: str = "",
    experiment: ExperimentBase | None = None,
) -> Job:
    """Make and check a job of its workload's class; raises SpecError.

    In `typed`, the value of a mapping such as `variant.options` is a list of key=value. If `workload` is None, it is
    that of the config, else the default. `experiment` is the content of the config file if it was read already.
    """
    if config and experiment is None:
        experiment = read_experiment(config)
    if workload and experiment and workload != experiment.workload:
        reason = f"{config} is a config of {experiment.workload}, not of {workload}"
        raise SpecError(f"{reason}; leave the word '{workload}' out")
    description = workload_of(workload or (experiment.workload if experiment else DEFAULT_WORKLOAD))
    typed = description.overlay({place: value for place, value in typed.items() if value is not None})
    base = None
    if variant is not None and experiment is None and "variant" in _part_class(description, "variant").model_fields:
        typed["variant.variant"] = variant
    elif variant is not None or experiment:
        base = _variant_of(description, experiment, variant, config, typed)
    values = experiment.model_dump(mode="json", include={"grid", "procedure"}) if experiment else {}
    subject = experiment.subject_values() if experiment else {}
    flags = flags_of(description.options())
    parts = {
        part: _overlaid(_part_class(description, part), part_values, _below(part, typed), _below(part, flags))
        for part, part_values in {"subject": subject, "grid": {}, "procedure": {}, **values}.items()
    }
    parts["variant"] = _variant(
        description, base, _below("variant", typed), _below("variant", flags), subject=parts["subject"]
    )
    job = description.job(workload=description.name, **parts, device=device, output=output, reproduce=reproduce)
    if typed.get("procedure.profile") is False and typed.get("procedure.profile_tokens") is not None:
        raise SpecError("--profile-tokens: does nothing beside --no-profile; give one of them")
    description.check(job, typed)
    return job


def _variant_of(
    workload: Workload, experiment: ExperimentBase | None, name: str | None, config: Path | None, typed: Typed
) -> VariantBase | None:
    fields = _part_class(workload, "variant").model_fields.items()
    required = [field for field, info in fields if info.is_required() and field != "name"]
    if experiment is None:
        essential = next(iter(required), "config").replace("_", "-")
        raise SpecError(f"--variant names a variant of a config file; give --config too, or use --{essential}")
    variants = {variant.name: variant for variant in experiment.variants}
    if name is not None:
        if name not in variants:
            raise SpecError(f"{config}: no variant '{name}'{did_you_mean(name, variants)}")
        return variants[name]
    if all(typed.get(f"variant.{field}") is None for field in required):
        choices = ", ".join(variants)
        raise SpecError(f"{config} has several variants; choose one with --variant ({choices}), or run all with sweep")
    return None


def _part_class(workload: Workload, part: str) -> Any:
    return workload.job.model_fields[part].annotation


def _below(place: str, typed: Typed) -> dict[str, Any]:
    return {key.removeprefix(f"{place}."): value for key, value in typed.items() if key.startswith(f"{place}.")}


def _overlaid(kind: type[Plain], values: Mapping[str, Any], typed: Typed, flags: Mapping[str, str]) -> Any:
    data = {**values, **{key: value for key, value in typed.items() if "." not in key}}
    for name, info in kind.model_fields.items():
        inner: Any = info.annotation
        if is_group(inner):
            group = _overlaid(inner, values.get(name, {}), _below(name, typed), _below(name, flags))
            data[name] = group.model_dump(mode="json")
    return validated(kind, data, where=WHERE, flags=flags)


def _variant(
    workload: Workload, base: VariantBase | None, typed: dict[str, Any], flags: Mapping[str, str], *, subject: Plain
) -> VariantBase:
    kind = _part_class(workload, "variant")
    data: dict[str, Any] = base.model_dump(mode="json") if base else dict(workload.default_variant)
    if base and typed and "name" not in typed:
        # A changed variant must not keep the name of the config's variant.
        data.pop("name")
    for key, value in typed.items():
        if option_kind(kind.model_fields[key].annotation) != "pairs":
            data[key] = value
            continue
        pairs: dict[str, Any] = {}
        for name, setting in map(parse_option, value):
            if name in pairs:
                raise SpecError(f"{flags[key]} {name}: given twice, as {pairs[name]} and as {setting}")
            pairs[name] = setting
        data[key] = data.get(key, {}) | pairs
    if not data:
        raise SpecError(f"no variant is given; for example: {workload.example}")
    variant = validated(kind, data, where=WHERE, flags=flags)
    return resolved(workload, variant, where=f"{WHERE}: ", flags=flags, subject=subject)


def blank_record(job: Job, environment: Environment, *, run_id: str, started: datetime) -> RunRecord:
    workload = workload_of(job.workload)
    return workload.record(
        benchmarker=__version__,
        run_id=run_id,
        started_at=started.isoformat(timespec="seconds"),
        status="running",
        **(job.part.model_dump(include={"round", "sweep", "place"}) if job.part else {}),
        environment=environment,
        # The number of rounds belongs to the sweep.
        procedure=job.procedure.model_dump(exclude={"rounds"}),
        reproduce=job.reproduce,
        **workload.record_fields(job),
    )


def job_path(folder: Path, variant: str) -> Path:
    return folder / f"{PREFIX}{slug(variant)}.json"


def write_job(job: Job, folder: Path) -> Path:
    path = job_path(folder, job.variant.name)
    write_atomically(path, job.model_dump_json(indent=1, exclude={"part", "output"}) + "\n")
    return path


def read_job_file(path: Path) -> Job:
    try:
        text, name = path.read_bytes(), DEFAULT_WORKLOAD
        # The validation refuses text that is no JSON object.
        with contextlib.suppress(ValueError, AttributeError):
            name = str(json.loads(text).get("workload", name))
        return workload_of(name).job.model_validate_json(text)
    except OSError as error:
        problem = read_problem(f"--job {path}", error)
    except SpecError as error:
        problem = f"--job {path}: {error}"
    except ValidationError as error:
        problem = f"--job {path}: {first_problem(error, Job)}"
    raise SpecError(f"{problem}; a sweep writes job-VARIANT.json")


def saved_jobs(folder: Path | None) -> list[Job]:
    jobs = []
    for path in sorted(folder.glob(f"{PREFIX}*.json")) if folder else []:
        with contextlib.suppress(SpecError):
            jobs.append(read_job_file(path))
    return jobs


def with_origin(job: Job, environment: Environment, *, config: Path, config_sha256: str, commit: str | None) -> Job:
    """Return the job with an origin: versions, environment, cell keys and file hashes, for the sweep's processes."""
    origin = Origin(
        config=str(config),
        # A saved job keeps the hash of the config from which it was made.
        config_sha256=job.origin.config_sha256 if job.origin else config_sha256,
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
    rounds, the profile, or the number and UUID of the GPU; a sweep measures each round on a single GPU.
    """
    determining = {
        "schema": SCHEMA_VERSION,
        "protocol": PROTOCOL_VERSION,
        "benchmarker": {"version": __version__, "commit": environment.commit},
        "workload": job.workload,
        "parts": workload_of(job.workload).key_parts(job),
        "point": job.grid.point_key(point),
        "procedure": job.procedure.model_dump(include={"warmup", "warmup_limit", "runs"}),
        "device": environment.device.model_dump(mode="json", exclude={"index", "uuid"}),
        "host": {"cpu": environment.cpu, "cores": environment.cores, "threads": environment.threads},
        "python": environment.python,
        "packages": environment.packages,
        "variables": {
            name: value for name, value in environment.variables.items() if not name.endswith("_VISIBLE_DEVICES")
        },
    }
    text = json.dumps(determining, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def cell_keys(job: Job, environment: Environment) -> list[str]:
    return [result_key(job, point, environment) for point in job.grid.points()]


def changed_files(job: Job) -> list[str]:
    is_judged = job.part is None or job.part.only == "quality"
    inputs = workload_of(job.workload).inputs
    return changed_inputs(job.origin.inputs, inputs(job, judged=is_judged)) if job.origin else []


def check_unchanged(job: Job, environment: Environment) -> None:
    """Raise ChangedError if, in a sweep, input files or cell keys differ from those that the sweep planned."""
    if job.part is None:
        return
    if files := changed_files(job):
        raise ChangedError(f"{_listed(files)} changed since the sweep began; {_way_on(files)}")
    if changes := differences(job, environment):
        changed = f"{_listed(changes)} changed since the sweep began"
        raise ChangedError(f"{changed}: the keys of these cells differ from the planned ones; begin a new sweep")


def differences(job: Job, environment: Environment) -> list[str]:
    """Return the differences from the environment of the job's origin if the cells' keys differ; else []."""
    origin = job.origin
    if origin is None or tuple(cell_keys(job, environment)) == origin.keys:
        return []
    changes = [f"benchmarker: {origin.benchmarker}, then {__version__}"] * (origin.benchmarker != __version__)
    fields = changed_fields(origin.environment, environment)
    changes += [change for change in fields if not change.startswith(CARD_FIELDS)]
    return changes or changed_files(job) or ["the files of the model or the job file"]


def refuse_changed(saved: Sequence[Job], jobs: Sequence[Job]) -> None:
    """Raise ResultsError if the model or the calibration text of a resumed sweep has changed."""
    before = {job.variant.name: job.origin.inputs for job in saved if job.origin}
    for job in jobs:
        earlier = before.get(job.variant.name, {})
        # Quality texts are checked with the records, which contain their hashes. A model or text of another name is
        # a new input, not a change.
        now = workload_of(job.workload).inputs(job, judged=False) if earlier else {}
        if changed := changed_inputs(earlier, {name: text for name, text in now.items() if name in earlier}):
            raise ResultsError(f"--resume: {_listed(changed)} changed since this sweep began; {_way_on(changed)}")


def _way_on(changed: Sequence[str]) -> str:
    return f"put {'it' if len(changed) == 1 else 'them'} back, or begin a new sweep"


def _listed(changes: Sequence[str]) -> str:
    more = len(changes) - 3
    return "; ".join(changes[:3]) + (f"; and {more} more" if more > 0 else "")
