"""From a command line to a job: a config file and the options beside it, checked together.

An option given on the command line wins over the config file's key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker import __version__
from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.schema.base import Plain
from benchmarker.schema.config_io import parse_option, read_experiment, resolved, validated
from benchmarker.schema.environment import Environment
from benchmarker.schema.experiment import ExperimentBase, VariantBase
from benchmarker.schema.job import Job
from benchmarker.schema.options import flags_of, is_group, kind_of
from benchmarker.schema.record import RunRecord
from benchmarker.schema.registry import DEFAULT_WORKLOAD, workload_of

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload

Typed = Mapping[str, Any]
"""What was typed, by the place in the job that it fills. None means that it was not typed."""
WHERE = "command line"


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
    """Check everything that was asked for.

    Args:
        typed: Values by place, such as `grid.new_tokens`. Of a mapping, such as `variant.options`, a list of key=value.
        workload: Its name; None for the config's, or the default.
        config: A config file that supplies whatever the command line does not.
        variant: Name of one of the config's variants.
        experiment: Content of the config file, where it was read already.

    Returns:
        The job, of the class that its workload has.

    Raises:
        SpecError: With the option or the config's key at fault.
    """
    if config and experiment is None:
        experiment = read_experiment(config)
    description = _workload(workload, experiment, config)
    typed = description.overlay({place: value for place, value in typed.items() if value is not None})
    base = None
    if variant is not None and experiment is None and "variant" in _part_class(description, "variant").model_fields:
        typed["variant.variant"] = variant
    elif variant is not None or experiment:
        base = _variant_of(description, experiment, variant, config, typed)
    values = experiment.model_dump(mode="json", include={"grid", "procedure"}) if experiment else {}
    subject = experiment.subject_values() if experiment else {}
    flags = flags_of(description.options())
    job = description.job(
        workload=description.name,
        variant=_variant(description, base, _below("variant", typed), _below("variant", flags)),
        **{
            part: _overlaid(_part_class(description, part), part_values, _below(part, typed), _below(part, flags))
            for part, part_values in {"subject": subject, "grid": {}, "procedure": {}, **values}.items()
        },
        device=device,
        output=output,
        reproduce=reproduce,
    )
    if typed.get("procedure.profile") is False and typed.get("procedure.profile_tokens") is not None:
        raise SpecError("--profile-tokens: does nothing beside --no-profile; give one of them")
    description.check(job, typed)
    return job


def _workload(name: str | None, experiment: ExperimentBase | None, config: Path | None) -> Workload:
    """The workload that is meant.

    Raises:
        SpecError: Its name is unknown, or not the config's.
    """
    if name and experiment and name != experiment.workload:
        raise SpecError(f"{config} is of {experiment.workload}, not of {name}; leave the word '{name}' out")
    return workload_of(name or (experiment.workload if experiment else DEFAULT_WORKLOAD))


def _variant_of(
    workload: Workload, experiment: ExperimentBase | None, name: str | None, config: Path | None, typed: Typed
) -> VariantBase | None:
    """The config's variant of that name; None where the options say one by themselves.

    Raises:
        SpecError: There is none, or several and no name.
    """
    essential = essential_option(workload)
    if experiment is None:
        raise SpecError(f"--variant names a variant of a config file; give --config too, or use {essential}")
    names = [variant.name for variant in experiment.variants]
    if name is not None:
        if name not in names:
            raise SpecError(f"{config}: no variant '{name}'{did_you_mean(name, names)}")
        return experiment.variants[names.index(name)]
    if all(typed.get(f"variant.{field}") is None for field in _required(workload)):
        choices = ", ".join(names)
        raise SpecError(f"{config} has several variants; choose one with --variant ({choices}), or run all with sweep")
    return None


def essential_option(workload: Workload) -> str:
    """The option without which there is no variant."""
    return f"--{next(iter(_required(workload)), 'config').replace('_', '-')}"


def _required(workload: Workload) -> list[str]:
    fields = _part_class(workload, "variant").model_fields.items()
    return [name for name, info in fields if info.is_required() and name != "name"]


def _part_class(workload: Workload, part: str) -> Any:
    """The class of one part of the workload's job."""
    return workload.job.model_fields[part].annotation


def _below(place: str, typed: Typed) -> dict[str, Any]:
    """What was typed of a part, by the place within it."""
    return {key.removeprefix(f"{place}."): value for key, value in typed.items() if key.startswith(f"{place}.")}


def _overlaid(kind: type[Plain], values: Mapping[str, Any], typed: Typed, flags: Mapping[str, str]) -> Any:
    """The values with what was typed put over them, checked again: each group by itself, which is how people see it.

    Raises:
        SpecError: The first thing wrong.
    """
    data = {**values, **{key: value for key, value in typed.items() if "." not in key}}
    for name, info in kind.model_fields.items():
        inner: Any = info.annotation
        if is_group(inner):
            group = _overlaid(inner, values.get(name, {}), _below(name, typed), _below(name, flags))
            data[name] = group.model_dump(mode="json")
    return validated(kind, data, where=WHERE, flags=flags)


def _variant(
    workload: Workload, base: VariantBase | None, typed: dict[str, Any], flags: Mapping[str, str]
) -> VariantBase:
    """The variant with what was typed put over it.

    Raises:
        SpecError: The first thing wrong.
    """
    kind = _part_class(workload, "variant")
    data: dict[str, Any] = base.model_dump(mode="json") if base else dict(workload.default_variant)
    if base and typed and "name" not in typed:
        # Another form than the config's must not pass under its name.
        data.pop("name")
    for key, value in typed.items():
        is_mapping = kind_of(kind.model_fields[key].annotation) == "pairs"
        data[key] = data.get(key, {}) | _each_once(flags[key], value) if is_mapping else value
    if not data:
        raise SpecError(f"nothing says which variant to run; for example: {workload.example}")
    variant = validated(kind, data, where=WHERE, flags=flags)
    return resolved(workload, variant, where=f"{WHERE}: ", joint="", flags=flags)


def _each_once(flag: str, options: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in (parse_option(text) for text in options):
        if key in values:
            raise SpecError(f"{flag} {key}: given twice, as {values[key]} and as {value}")
        values[key] = value
    return values


def blank_record(job: Job, environment: Environment, *, run_id: str, started: datetime) -> RunRecord:
    """What is known of a run before it has done anything."""
    workload = workload_of(job.workload)
    return workload.record(
        benchmarker=__version__,
        run_id=run_id,
        started_at=started.isoformat(timespec="seconds"),
        status="running",
        round=job.part.round if job.part else 0,
        sweep=job.part.sweep if job.part else None,
        place=job.part.place if job.part else None,
        environment=environment,
        # How often a sweep repeats the run is not how the run measures.
        procedure=job.procedure.model_dump(exclude={"rounds"}),
        reproduce=job.reproduce,
        **workload.record_fields(job),
    )
