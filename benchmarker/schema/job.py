"""One run as a value: subject, variant, grid, device, and its part of a sweep.

A workload's job is a subclass with the types of its subject, variant and grid. `run --job` reads it as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from benchmarker.core.errors import did_you_mean
from benchmarker.schema.base import Plain
from benchmarker.schema.record import Environment

Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]


class VariantBase(Plain):
    name: Annotated[str, Field(min_length=1, max_length=80)]
    """Name in the tables."""

    @model_validator(mode="before")
    @classmethod
    def _name_after_values(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "name" in data:
            return data
        places = {name: place for place, name in enumerate(cls.model_fields)}
        names = sorted(data, key=lambda name: places.get(name, len(places)))
        values = [str(data[name]) for name in names if isinstance(data[name], str | int | float)]
        return {**data, "name": " ".join(values)} if values else data


class GridBase(Plain):
    exclude: tuple[dict[str, int | float | str], ...] = ()
    """Cells left out: those with all values of an entry, such as {prompt_tokens: 4096, batch_size: 128}."""

    def points(self) -> list[Any]:
        """Return every cell as a named tuple, the smallest first, so that lack of memory affects only larger cells."""
        cells = self.combinations()
        return [cell for cell in cells if not any(entry.items() <= cell._asdict().items() for entry in self.exclude)]

    def combinations(self) -> Sequence[Any]:
        """Return every combination of the axes' values, also those excluded."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _exclude_names_axes(self) -> Self:
        for axis in {axis for entry in self.exclude for axis in entry} - self.__class__.model_fields.keys():
            raise ValueError(f"exclude: no axis '{axis}'{did_you_mean(axis, self.__class__.model_fields)}")
        if self.exclude and not self.points():
            raise ValueError("exclude leaves no cell; remove an entry of it, or choose other sizes")
        return self

    def point_key(self, point: Any) -> dict[str, Any]:
        """Return the values of a point that determine its result."""
        return dict(point._asdict())


class Procedure(Plain):
    warmup: Annotated[int, Field(gt=0, le=100)] = 3
    """Untimed runs at the cell's exact shape. Warm-up continues until the last three agree within 2 %."""
    warmup_limit: Annotated[int, Field(gt=0, le=100)] = 10
    """Maximum number of untimed runs, unless `warmup` is larger."""
    runs: Positive = 5
    """Timed runs."""
    rounds: Positive = 5
    """Number of times that a sweep runs every variant, each time in a new process. Intervals are over rounds."""
    profile: bool = True
    """Record one more run under torch.profiler, after the timing."""
    profile_tokens: Positive = 32
    """Maximum number of tokens of the profiled generation. A trace grows by megabytes per token."""
    energy: bool = False
    """Count the energy of the largest cell, after the timing. Takes about a minute on a GPU with an energy counter."""
    limits: bool = True
    """Measure the device's bandwidth and matmul rate first, which takes one or two seconds."""


class ExperimentBase(Plain):
    """A whole comparison, as in a config file. A subclass adds `subject`."""

    workload: str
    grid: GridBase
    procedure: Procedure = Procedure()
    variants: Annotated[tuple[VariantBase, ...], Field(min_length=1)]
    baseline: str | None = None
    """Name of the variant to which speed-ups are relative. The first variant by default."""

    @model_validator(mode="after")
    def _names_make_sense(self) -> Self:
        names = [variant.name for variant in self.variants]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"variants: two are named '{name}'; give them a name each")
        if self.baseline is not None and self.baseline not in names:
            raise ValueError(f"baseline: no variant '{self.baseline}'{did_you_mean(self.baseline, names)}")
        return self

    @property
    def first_baseline(self) -> str:
        """Name of the first variant, which is the baseline if the config names none."""
        return self.variants[0].name

    def subject_values(self) -> dict[str, Any]:
        subject: Plain = getattr(self, "subject")  # noqa: B009
        return subject.model_dump(mode="json")


PROGRAM = "python -m benchmarker.run"


class Part(Plain):
    """Share of a sweep that one process measures."""

    record: Path
    sweep: str
    round: int = 0
    cells: tuple[int, ...] = ()
    only: Literal["timing", "quality"]
    profile: bool = False
    """True for the one process of a variant that profiles and checks the step."""
    place: str | None = None


class Origin(Plain):
    """State of the machine and the files when a sweep wrote the job. A process that finds another state stops."""

    config: str
    config_sha256: str
    benchmarker: str
    environment: Environment
    keys: tuple[str, ...]
    """`key` of each cell, by position in the grid."""
    inputs: dict[str, str]
    commit: str | None = None


class Job(Plain):
    job_version: Literal[2] = 2
    workload: str
    subject: Plain
    variant: VariantBase
    grid: GridBase
    procedure: Procedure
    device: str
    reproduce: str
    output: Path | None = None
    """Folder for the record; None for `results/<device>/<subject>`."""
    part: Part | None = None
    origin: Origin | None = None

    @property
    def is_timed(self) -> bool:
        return self.part is None or self.part.only == "timing"

    @property
    def source(self) -> Plain:
        return self.subject

    @property
    def gpus(self) -> int:
        return 1

    @property
    def title(self) -> str:
        """Subject of the job, for the first line of output and the name of the records' folder."""
        return self.workload

    @property
    def matmul_dtype(self) -> str:
        """Type in which the device's matmul rate is measured."""
        return getattr(self.variant, "dtype", None) or getattr(self.subject, "dtype", None) or "float32"

    @property
    def processes(self) -> int:
        """Number of processes of one run that may compute on the same GPU."""
        return 1

    def repeat_s(self, point: Any) -> float:  # noqa: ARG002
        """Return a first guess of the seconds of one repeat."""
        return 1.0

    @property
    def slowness(self) -> str:
        """Warning in the plan of a sweep that this machine is unsuited to the subject; empty if it is suited."""
        return ""

    def in_part(self, part: Part) -> Self:
        if part.profile or not self.procedure.profile:
            return self.model_copy(update={"part": part})
        procedure = self.procedure.model_copy(update={"profile": False})
        reproduce = f"{self.reproduce} --no-profile"
        return self.model_copy(update={"part": part, "procedure": procedure, "reproduce": reproduce})

    def points(self) -> list[Any]:
        points = list(self.grid.points())
        return [points[position] for position in self.part.cells] if self.part else points
