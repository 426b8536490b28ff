"""One run as a value: subject, variant, grid, device, and its part of a sweep.

A workload's job is a subclass with the types of its subject, variant and grid. `run --job` reads it as JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from benchmarker.schema.base import Plain
from benchmarker.schema.environment import Environment
from benchmarker.schema.experiment import GridBase, Procedure, VariantBase

PROGRAM = "python -m benchmarker.run"
"""Beginning of the command that repeats a record."""


class Part(Plain):
    """Share of a sweep that one process measures."""

    record: Path
    """Path of the record that the sweep expects."""
    sweep: str
    """Time at which the sweep began."""
    round: int = 0
    cells: tuple[int, ...] = ()
    """Positions in the grid's points."""
    only: Literal["timing", "quality"]
    """Timing and quality have a process each."""
    profile: bool = False
    """Whether this process profiles and checks the step; one process of a variant does."""
    place: str | None = None
    """Worker of the sweep, as `local:1`. None if the sweep has one worker."""


class Origin(Plain):
    """State of the machine and the files when a sweep wrote the job. A process stops if it differs."""

    config: str
    """Config file of the job. It is not read again."""
    config_sha256: str
    """SHA-256 of the config file."""
    benchmarker: str
    """Version of this program."""
    environment: Environment
    keys: tuple[str, ...]
    """`key` of each cell, by position in the grid."""
    inputs: dict[str, str]
    """Fingerprints of the files that the job reads, by description."""
    commit: str | None = None
    """Hub commit of the model's files. None for a folder, or if the hub did not return one."""


class Job(Plain):
    """Everything that one run needs."""

    job_version: Literal[2] = 2
    """Version of the format."""
    workload: str
    """Name of the workload."""
    subject: Plain
    """Values that all variants share."""
    variant: VariantBase
    grid: GridBase
    procedure: Procedure
    device: str
    reproduce: str
    """Command line, for the record."""
    output: Path | None = None
    """Folder for the record; None for `results/<device>/<subject>`."""
    part: Part | None = None
    """None for a single run, which measures the whole grid."""
    origin: Origin | None = None
    """None for a job that no sweep wrote."""

    @property
    def is_timed(self) -> bool:
        """Whether this process times anything."""
        return self.part is None or self.part.only == "timing"

    @property
    def source(self) -> Plain:
        """Part of the job that decides which files a look-up finds."""
        return self.subject

    @property
    def gpus(self) -> int:
        """Number of GPUs that one process uses."""
        return 1

    @property
    def title(self) -> str:
        """Subject of the job, for the first line and the folder of its records."""
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

    def in_part(self, part: Part) -> Self:
        """Return the job of one process of a sweep."""
        if part.profile or not self.procedure.profile:
            return self.model_copy(update={"part": part})
        procedure = self.procedure.model_copy(update={"profile": False})
        reproduce = f"{self.reproduce} --no-profile"
        return self.model_copy(update={"part": part, "procedure": procedure, "reproduce": reproduce})

    def points(self) -> list[Any]:
        """Return the cells to measure, the smallest first."""
        points = list(self.grid.points())
        return [points[position] for position in self.part.cells] if self.part else points
