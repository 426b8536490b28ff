"""Values of a config file: variants, grid and procedure, which every workload has.

They are checked before torch is imported or a byte is downloaded. A workload's own parts are subclasses in
`workloads/NAME/spec.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from benchmarker.core.errors import did_you_mean
from benchmarker.schema.base import Plain

Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]


class VariantBase(Plain):
    """One variant of a comparison."""

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
    """Cells to measure: a field for each axis."""

    def points(self) -> Sequence[Any]:
        """Return every cell as a named tuple, the smallest first, so that running out of memory costs only larger
        cells."""
        raise NotImplementedError

    def point_key(self, point: Any) -> dict[str, Any]:
        """Return the values of a point that determine its result."""
        values: dict[str, Any] = point._asdict()
        return values


class Procedure(Plain):
    """How each cell is measured."""

    warmup: Annotated[int, Field(gt=0, le=100)] = 3
    """Untimed generations at the cell's exact shape. More follow until the last three agree within 2 %."""
    warmup_limit: Annotated[int, Field(gt=0, le=100)] = 10
    """Maximum number of untimed generations, unless `warmup` is larger."""
    runs: Positive = 5
    """Timed generations."""
    rounds: Positive = 5
    """Number of times that a sweep runs every variant, each time in a new process. Intervals are over rounds."""
    profile: bool = True
    """Record one more generation under torch.profiler, after the timing."""
    profile_tokens: Positive = 32
    """Maximum number of tokens of the profiled generation. A trace grows by megabytes per token."""
    energy: bool = False
    """Count the energy of the largest cell, after the timing. Takes about a minute on a GPU with an energy counter."""
    limits: bool = True
    """Measure the device's bandwidth and matmul rate first, which takes one or two seconds."""


class ExperimentBase(Plain):
    """A whole comparison, as in a config file. A subclass adds `subject`."""

    workload: str
    """Name of the workload."""
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
                raise ValueError(f"variants: two are named '{name}'")
        if self.baseline is not None and self.baseline not in names:
            raise ValueError(f"baseline: no variant '{self.baseline}'{did_you_mean(self.baseline, names)}")
        return self

    def subject_values(self) -> dict[str, Any]:
        """Return the fields of the job's subject as JSON values."""
        subject: Plain = getattr(self, "subject")  # noqa: B009
        return subject.model_dump(mode="json")
