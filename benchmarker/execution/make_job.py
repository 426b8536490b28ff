"""Make a job from a config file and options, checked together. An option overrides the config's key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker import __version__
from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.schema.base import Plain
from benchmarker.schema.config_io import parse_option, read_experiment, resolved, validated
from benchmarker.schema.job import ExperimentBase, Job, VariantBase
from benchmarker.schema.options import flags_of, is_group, kind_of
from benchmarker.schema.record import Environment, RunRecord
from benchmarker.schema.registry import DEFAULT_WORKLOAD, workload_of

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload

Typed = Mapping[str, Any]
"""Values of options by their place in the job, such as `grid.new_tokens`. None means that an option is not given."""
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
    """Make and check a job.

    Args:
        typed: Values of the options. The value of a mapping, such as `variant.options`, is a list of key=value.
        workload: Name of the workload; None for the config's, or the default.
        config: Config file with the values that no option gives.
        variant: Name of one of the config's variants.
        experiment: Content of the config file if it was read already.

    Returns:
        The job, of the class that its workload has.

    Raises:
        SpecError: An option or a key of the config is wrong.
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
    """Return the workload."""
    if name and experiment and name != experiment.workload:
        raise SpecError(f"{config} is a config of {experiment.workload}, not of {name}; leave the word '{name}' out")
    return workload_of(name or (experiment.workload if experiment else DEFAULT_WORKLOAD))


def _variant_of(
    workload: Workload, experiment: ExperimentBase | None, name: str | None, config: Path | None, typed: Typed
) -> VariantBase | None:
    """Return the config's variant of that name; None if the options define a variant by themselves."""
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
    """Return the option that defines a variant, such as `--quant`."""
    return f"--{next(iter(_required(workload)), 'config').replace('_', '-')}"


def _required(workload: Workload) -> list[str]:
    fields = _part_class(workload, "variant").model_fields.items()
    return [name for name, info in fields if info.is_required() and name != "name"]


def _part_class(workload: Workload, part: str) -> Any:
    return workload.job.model_fields[part].annotation


def _below(place: str, typed: Typed) -> dict[str, Any]:
    return {key.removeprefix(f"{place}."): value for key, value in typed.items() if key.startswith(f"{place}.")}


def _overlaid(kind: type[Plain], values: Mapping[str, Any], typed: Typed, flags: Mapping[str, str]) -> Any:
    """Return the values with the options put over them. Each group is checked by itself, as users see it."""
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
    """Return the variant with the options put over it."""
    kind = _part_class(workload, "variant")
    data: dict[str, Any] = base.model_dump(mode="json") if base else dict(workload.default_variant)
    if base and typed and "name" not in typed:
        # A changed variant must not keep the name of the config's variant.
        data.pop("name")
    for key, value in typed.items():
        is_mapping = kind_of(kind.model_fields[key].annotation) == "pairs"
        data[key] = data.get(key, {}) | _each_once(flags[key], value) if is_mapping else value
    if not data:
        raise SpecError(f"no variant is given; for example: {workload.example}")
    variant = validated(kind, data, where=WHERE, flags=flags)
    return resolved(workload, variant, where=f"{WHERE}: ", flags=flags)


def _each_once(flag: str, options: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in (parse_option(text) for text in options):
        if key in values:
            raise SpecError(f"{flag} {key}: given twice, as {values[key]} and as {value}")
        values[key] = value
    return values


def blank_record(job: Job, environment: Environment, *, run_id: str, started: datetime) -> RunRecord:
    """Return the record of a run that has not measured anything yet."""
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
        # The number of rounds belongs to the sweep.
        procedure=job.procedure.model_dump(exclude={"rounds"}),
        reproduce=job.reproduce,
        **workload.record_fields(job),
    )
