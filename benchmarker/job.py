"""From a command line to a job: a config file and the options beside it, checked together.

An option given on the command line wins over the config file's key.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarker.errors import SpecError, did_you_mean
from benchmarker.plain import Plain
from benchmarker.spec import (
    Grid,
    ModelSpec,
    Procedure,
    VariantSpec,
    parse_option,
    read_experiment,
    validated,
)

Given = dict[str, Any]
"""Command-line values by field name; None means not given."""


@dataclass(frozen=True)
class Job:
    """Everything that one run is told."""

    model: ModelSpec
    variant: VariantSpec
    grid: Grid
    procedure: Procedure
    device: str
    output: Path | None
    """Folder for the record; None for `results/<device>/<model>`."""
    session: str | None
    """Subfolder that the records of one sweep share."""
    reproduce: str
    """The command line, for the record."""


def make_job(
    *,
    config: Path | None,
    variant: str | None,
    model: Given,
    form: Given,
    options: list[str],
    grid: Given,
    procedure: Given,
    device: str,
    output: Path | None,
    session: str | None,
    reproduce: str,
) -> Job:
    """Check everything that was given.

    Args:
        config: A config file that supplies whatever the command line does not.
        variant: Name of one of the config's variants.
        form: Fields of VariantSpec.
        options: `key=value` pairs for the loader.

    Raises:
        SpecError: With the option or the config's key at fault.
    """
    experiment = read_experiment(config) if config else None
    if variant is not None and experiment is None:
        raise SpecError("--variant names a variant of a config file; give --config too, or use --quant")
    base: VariantSpec | None = None
    if experiment and variant is not None:
        base = next((one for one in experiment.variants if one.name == variant), None)
        if base is None:
            raise SpecError(f"{config}: no variant '{variant}'{did_you_mean(variant, [v.name for v in experiment.variants])}")
    if experiment and base is None and form.get("quant") is None:
        names = ", ".join(one.name for one in experiment.variants)
        raise SpecError(f"{config} has several variants; choose one with --variant ({names}), or run all with sweep")
    return Job(
        model=_with(experiment.model if experiment else ModelSpec(), model),
        variant=_form(base, form, dict(parse_option(text) for text in options)),
        grid=_with(experiment.grid if experiment else Grid(), grid),
        procedure=_with(experiment.procedure if experiment else Procedure(), procedure),
        device=device,
        output=output,
        session=session,
        reproduce=reproduce,
    )


def _with(spec: Any, given: Given) -> Any:
    """The spec with what was given put over it, checked again."""
    data = spec.model_dump(mode="json") | {key: value for key, value in given.items() if value is not None}
    kind: type[Plain] = type(spec)
    return validated(kind, data, where="command line")


def _form(base: VariantSpec | None, form: Given, options: dict[str, Any]) -> VariantSpec:
    data: Given = base.model_dump(mode="json") if base else {"quant": "fp16"}
    given = {key: value for key, value in form.items() if value is not None}
    if base and (options or given) and "name" not in given:
        # Another form than the config's must not pass under its name.
        data.pop("name")
    data |= given
    if options:
        data["options"] = data.get("options", {}) | options
    return validated(VariantSpec, data, where="command line")


def whole_numbers(option: str, text: str | None) -> list[int] | None:
    """`3,26` as numbers.

    Raises:
        SpecError: Something in it is not a whole number.
    """
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SpecError(f"{option} {text}: write whole numbers separated by commas, such as 3,26") from None
