"""Everything that one run is told: what to measure, where, and what a sweep wants of it.

A workload's job is a subclass with the types of its own subject, variant and grid. As JSON it is what `run --job`
reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from benchmarker.schema.base import Plain
from benchmarker.schema.environment import Environment
from benchmarker.schema.experiment import GridBase, Procedure, VariantBase

PROGRAM = "python -m benchmarker.run"
"""What a record says that makes it again, before its arguments."""


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
    """Whether this process makes the profile that the job asks for, and checks the step: one of a variant is enough."""
    place: str | None = None
    """Which of a sweep's places it is, as `local:1`. None for a sweep that has one."""


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
    """Fingerprints of the files that the job reads, by what they are: see `benchmarker.core.fingerprint`."""
    commit: str | None = None
    """Hub commit of the model's files. None for a folder, where the hub did not say, and where there is no model."""


class Job(Plain):
    """Everything that one run is told."""

    job_version: Literal[2] = 2
    """1: generation alone."""
    workload: str
    """What is measured."""
    subject: Plain
    """What is common to all variants."""
    variant: VariantBase
    grid: GridBase
    procedure: Procedure
    device: str
    reproduce: str
    """The command line, for the record."""
    output: Path | None = None
    """Folder for the record; None for `results/<device>/<subject>`."""
    part: Part | None = None
    """None for a run by itself, which measures the whole grid."""
    origin: Origin | None = None
    """None for a job that no sweep wrote."""

    @property
    def is_timed(self) -> bool:
        """Whether anything is timed in this process."""
        return self.part is None or self.part.only == "timing"

    @property
    def source(self) -> Plain:
        """What two jobs have in common if one look-up of the files serves both."""
        return self.subject

    @property
    def gpus(self) -> int:
        """GPUs that one process of a sweep uses at once."""
        return 1

    def in_part(self, part: Part) -> Self:
        """The job of one process of a sweep."""
        if part.profile or not self.procedure.profile:
            return self.model_copy(update={"part": part})
        procedure = self.procedure.model_copy(update={"profile": False})
        reproduce = f"{self.reproduce} --no-profile"
        return self.model_copy(update={"part": part, "procedure": procedure, "reproduce": reproduce})

    def points(self) -> list[Any]:
        """The cells to measure, smallest first."""
        points = list(self.grid.points())
        return [points[position] for position in self.part.cells] if self.part else points
