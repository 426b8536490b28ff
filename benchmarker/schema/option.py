"""One option of `benchmarker run`, available to the command line before any workload is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["flag", "whole", "number", "text", "wholes", "words", "texts", "pairs"]
"""`wholes` and `words` are lists with commas; these, `texts` and `pairs` (key=value) may be repeated."""


@dataclass(frozen=True)
class Option:
    """One option of a run."""

    flag: str
    place: str
    """Field of the job that it sets."""
    kind: Kind
    help: str
    panel: str
    default: str | None = None
    """Default value for --help."""
    value: Any = None
    """Value that it sets if it takes none."""
    key: str | None = None
    """Key of a mapping if it sets one value of the mapping."""

    @property
    def takes_value(self) -> bool:
        return self.kind != "flag"
