"""What is asked for: what is measured, in which variants, over which grid, measured how. The parts of every workload.

Frozen values, checked when they are made, before torch is imported or a byte is downloaded. A workload's own parts are
subclasses of these, in `workloads/<name>/spec.py`.
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
    """One of the things that are compared."""

    name: Annotated[str, Field(min_length=1, max_length=80)]
    """What the tables call it."""

    @model_validator(mode="before")
    @classmethod
    def _name_after_values(cls, data: Any) -> Any:
        """One that nobody named is called after its values, in the order of the fields: `flash float32`."""
        if not isinstance(data, dict) or "name" in data:
            return data
        places = {name: place for place, name in enumerate(cls.model_fields)}
        names = sorted(data, key=lambda name: places.get(name, len(places)))
        values = [str(data[name]) for name in names if isinstance(data[name], str | int | float)]
        return {**data, "name": " ".join(values)} if values else data


class GridBase(Plain):
    """Which cells are measured: a field for each axis."""

    def points(self) -> Sequence[Any]:
        """Every cell as a named tuple, smallest first, so that running out of memory costs only the larger ones."""
        raise NotImplementedError


class Procedure(Plain):
    """How each cell is measured."""

    warmup: Annotated[int, Field(gt=0, le=100)] = 3
    """Untimed generations at the cell's exact shape. More follow until the last three agree within 2 %."""
    warmup_limit: Annotated[int, Field(gt=0, le=100)] = 10
    """How many untimed generations there are at most, unless `warmup` asks for more."""
    runs: Positive = 5
    """Timed generations."""
    rounds: Positive = 5
    """Times that a sweep runs every variant, each time in a fresh process: what the intervals rest on."""
    profile: bool = True
    """Record one more generation under torch.profiler, after the timing."""
    profile_tokens: Positive = 32
    """Length of that generation at most: a trace grows by megabytes a token."""
    energy: bool = False
    """Count the energy of the largest cell, after the timing: a good minute on a GPU whose driver has a counter."""
    limits: bool = True
    """Measure the device's bandwidth and matmul rate first, which takes a second or two."""


class ExperimentBase(Plain):
    """A whole comparison, as a config file holds it. A subclass adds `subject`, or what takes its place."""

    workload: str
    """What is measured."""
    grid: GridBase
    procedure: Procedure = Procedure()
    variants: Annotated[tuple[VariantBase, ...], Field(min_length=1)]
    baseline: str | None = None
    """Name of the variant that speed-ups are against; the first one if not said."""

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
        """Fields of the job's subject, as JSON has them."""
        subject: Plain = getattr(self, "subject")  # noqa: B009
        return subject.model_dump(mode="json")
