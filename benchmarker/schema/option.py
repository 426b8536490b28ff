"""One option of `benchmarker run`: what the command line knows of it before any workload is imported."""

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
    """Field of the job that it fills."""
    kind: Kind
    help: str
    panel: str
    default: str | None = None
    """In words, for --help. None where there is nothing to say."""
    value: Any = None
    """What it fills in, where it takes no value."""
    key: str | None = None
    """Where its value is one of a mapping."""

    @property
    def takes_value(self) -> bool:
        return self.kind != "flag"
