"""What a workload tells the doctor: which of its variants run on a machine, and how one is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Outcome:
    """One variant, run in one way."""

    variant: str
    way: str
    """Such as an engine: a column of the table."""
    reason: str | None
    """Why it does not run, with what to do; None where it does."""
    is_for_others: bool = False
    """Whether this device has no code for it, so that nothing is in the way that could be mended."""


class Clinic(Protocol):
    """A workload's variants, looked at and tried."""

    first_way: str
    """The way that all others build on: what fails in it is not tried in another."""

    def look(self, machine: Any, device: Any) -> Iterator[Outcome]:
        """What is clear without running anything.

        Args:
            machine: As the doctor found it: `environment`, `has_triton`, `compiler`.
            device: That would be measured.
        """

    def beside(self, device: Any) -> Iterator[str]:
        """What else runs here and is not tried, such as engines with an environment of their own: a line each."""
        del device
        return iter(())

    def trial(self, device: Any) -> AbstractContextManager[tuple[Callable[[Outcome], list[str]], Path]]:
        """Arguments of a run that tries an outcome, and the folder that holds what trying needs and leaves behind. Its
        records go into `records` there."""
