"""From a command line to a job: a config file and the options beside it, checked together.

An option given on the command line wins over the config file's key.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from benchmarker import __version__
from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.schema.base import Plain
from benchmarker.schema.config_io import parse_option, read_experiment, validated
from benchmarker.schema.experiment import (
    Experiment,
    Grid,
    ModelSpec,
    Point,
    Procedure,
    QualitySpec,
    VariantSpec,
)
from benchmarker.schema.record import Environment, ModelFacts, RunRecord, VariantFacts

Given = dict[str, Any]
"""Command-line values by field name; None means not given."""

QUALITY_OPTIONS = {"--eval-text": "text", "--quality-topk": "top_k", "--quality-baseline": "baseline"}
"""Those that say how, by the fields of QualitySpec that they fill."""


class Part(Plain):
    """The share of a sweep that one process measures."""

    record: Path
    """File that the sweep expects the record in."""
    sweep: str
    """When it began."""
    round: int = 0
    cells: tuple[int, ...] = ()
    """Positions in the grid's points."""
    only: Literal["timing", "quality"]
    """A sweep has a process for each."""
    profile: bool = False
    """Whether this process makes the profile that the job asks for: one of a variant is enough."""


class Origin(Plain):
    """What a sweep knew when it wrote a job. Its processes stop where that is no longer so."""

    config: str
    """Config file that the job was made from. It is not read again."""
    config_sha256: str
    """Of its content then."""
    benchmarker: str
    """Version of this program."""
    environment: Environment
    keys: tuple[str, ...]
    """`key` of each cell, by position in the grid."""
    inputs: dict[str, str]
    """Fingerprints of the files that the job reads, by what they are: see `benchmarker.execution.inputs`."""
    commit: str | None = None
    """Hub commit of the model's files. None for a folder, and where the hub did not say."""


class Job(Plain):
    """Everything that one run is told. As JSON it is what `run --job` reads."""

    job_version: Literal[1] = 1
    model: ModelSpec
    variant: VariantSpec
    grid: Grid
    procedure: Procedure
    quality: QualitySpec
    device: str
    reproduce: str
    """The command line, for the record."""
    output: Path | None = None
    """Folder for the record; None for `results/<device>/<model>`."""
    part: Part | None = None
    """None for a run by itself, which measures the whole grid."""
    origin: Origin | None = None
    """None for a job that no sweep wrote."""

    @property
    def is_timed(self) -> bool:
        """Whether anything is timed in this process."""
        return self.part is None or self.part.only == "timing"

    @property
    def is_judged(self) -> bool:
        """Whether quality is measured in this process."""
        return self.quality.is_asked and (self.part is None or self.part.only == "quality")

    def in_part(self, part: Part) -> Job:
        """The job of one process of a sweep."""
        if part.profile or not self.procedure.profile:
            return self.model_copy(update={"part": part})
        procedure = self.procedure.model_copy(update={"profile": False})
        reproduce = f"{self.reproduce} --no-profile"
        return self.model_copy(update={"part": part, "procedure": procedure, "reproduce": reproduce})

    def points(self) -> list[Point]:
        """The cells to measure, smallest first."""
        points = self.grid.points()
        return [points[position] for position in self.part.cells] if self.part else points


def make_job(
    *,
    config: Path | None,
    variant: str | None,
    model: Given,
    form: Given,
    options: list[str],
    engine_options: Sequence[str] = (),
    grid: Given,
    procedure: Given,
    quality: Given,
    device: str,
    output: Path | None,
    reproduce: str,
    experiment: Experiment | None = None,
) -> Job:
    """Check everything that was given.

    Args:
        config: A config file that supplies whatever the command line does not.
        variant: Name of one of the config's variants.
        form: Fields of VariantSpec.
        options: `key=value` pairs for the loader.
        engine_options: The same for the engine.
        quality: Fields of QualitySpec.
        experiment: Content of the config file, where it was read already.

    Raises:
        SpecError: With the option or the config's key at fault.
    """
    if config and experiment is None:
        experiment = read_experiment(config)
    if variant is not None and experiment is None:
        raise SpecError("--variant names a variant of a config file; give --config too, or use --quant")
    base: VariantSpec | None = None
    if experiment and variant is not None:
        base = next((one for one in experiment.variants if one.name == variant), None)
        if base is None:
            raise SpecError(
                f"{config}: no variant '{variant}'{did_you_mean(variant, [v.name for v in experiment.variants])}"
            )
    if experiment and base is None and form.get("quant") is None:
        names = ", ".join(one.name for one in experiment.variants)
        raise SpecError(f"{config} has several variants; choose one with --variant ({names}), or run all with sweep")
    asked_model = _with(experiment.model if experiment else ModelSpec(), model)
    asked_quality = _with(experiment.quality if experiment else QualitySpec(), quality)
    _check_quality(asked_model, asked_quality, given=quality)
    asked_grid = _with(experiment.grid if experiment else Grid(), _one_kind_of_prompt(grid))
    if model.get("chat_template") and not asked_grid.prompts:
        raise SpecError("--chat-template: wraps a text, and there is none; add --prompt TEXT, or leave it out")
    if procedure.get("profile") is False and procedure.get("profile_tokens") is not None:
        raise SpecError("--profile-tokens: does nothing beside --no-profile; give one of them")
    return Job(
        model=asked_model,
        variant=_form(base, form, _each_once("--option", options), _each_once("--engine-option", engine_options)),
        grid=asked_grid,
        procedure=_with(experiment.procedure if experiment else Procedure(), procedure),
        quality=asked_quality,
        device=device,
        output=output,
        reproduce=reproduce,
    )


def _check_quality(model: ModelSpec, quality: QualitySpec, *, given: Given) -> None:
    """Refuse to judge random weights, and options that would do nothing.

    Raises:
        SpecError: With what to leave out.
    """
    idle = [name for name, key in QUALITY_OPTIONS.items() if given.get(key) is not None]
    if quality.size == "off" and given.get("size") is None and idle:
        raise SpecError(f"{idle[0]}: does nothing without --quality; add --quality quick or --quality full")
    if given.get("task_limit") is not None and not quality.tasks:
        raise SpecError("--task-limit: does nothing without --tasks; add --tasks hellaswag, or leave it out")
    if quality.is_asked and model.load_format == "dummy":
        raise SpecError(
            "--quality, --tasks: random weights (load_format dummy) have no quality to lose; measure real weights, "
            "or leave them out"
        )


def blank_record(job: Job, environment: Environment, *, run_id: str, started: datetime) -> RunRecord:
    """What is known of a run before it has done anything."""
    return RunRecord(
        benchmarker=__version__,
        run_id=run_id,
        started_at=started.isoformat(timespec="seconds"),
        status="running",
        round=job.part.round if job.part else 0,
        sweep=job.part.sweep if job.part else None,
        model=ModelFacts(**job.model.model_dump()),
        variant=VariantFacts(
            name=job.variant.name,
            quant=job.variant.quant,
            runtime=job.variant.engine,
            options=job.variant.loader_options.model_dump(),
            engine_options=job.variant.typed_engine_options.model_dump(),
        ),
        environment=environment,
        # How often a sweep repeats the run is not how the run measures.
        procedure=job.procedure.model_dump(exclude={"rounds"}),
        reproduce=job.reproduce,
    )


def _with(spec: Any, given: Given) -> Any:
    """The spec with what was given put over it, checked again."""
    data = spec.model_dump(mode="json") | {key: value for key, value in given.items() if value is not None}
    kind: type[Plain] = type(spec)
    return validated(kind, data, where="command line")


def _one_kind_of_prompt(grid: Given) -> Given:
    """Lengths on the command line take the place of a config's texts, which would win over its own lengths."""
    if grid.get("prompt_tokens") is None:
        return grid
    if grid.get("prompts"):
        raise SpecError("--prompt and --prompt-tokens: a text has its own length; give one of them")
    return {**grid, "prompts": ()}


def _each_once(flag: str, options: Sequence[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, value in map(parse_option, options):
        if key in given:
            raise SpecError(f"{flag} {key}: given twice, as {given[key]} and as {value}")
        given[key] = value
    return given


def _form(
    base: VariantSpec | None, form: Given, options: dict[str, Any], engine_options: dict[str, Any]
) -> VariantSpec:
    data: Given = base.model_dump(mode="json") if base else {"quant": "fp16"}
    given = {("engine" if key == "runtime" else key): value for key, value in form.items() if value is not None}
    if base and (options or engine_options or given) and "name" not in given:
        # Another form than the config's must not pass under its name.
        data.pop("name")
    data |= given
    for field, values in (("options", options), ("engine_options", engine_options)):
        if values:
            data[field] = data.get(field, {}) | values
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
