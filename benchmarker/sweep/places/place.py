"""What a sweep must know of its places, wherever they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarker.core.errors import SpecError
from benchmarker.sweep.places.order import Order

RAY = "ray"
LOCAL = "local:"
"""How a place on this host is named, before the number of its GPU."""
HOW = "give 'local:0,1' for GPUs of this host by number, or 'ray'"


@dataclass(frozen=True)
class Place:
    """A card, or a share of a host's cores where there is none."""

    name: str
    """As the user sees it: `local:1`, `node3/0`."""
    host: str
    """What is prepared once for all places that have it."""
    slot: int
    slots: int
    """Places of this host."""


@dataclass(frozen=True)
class Ended:
    """An order that came to an end, or was lost."""

    place: Place
    parcel: Path
    """The order's folder."""
    lost: str | None = None
    """What became of the place; None where the folder has its delivery."""


class Places(Protocol):
    """Where rounds are measured: local, or Ray."""

    def places(self) -> Sequence[Place]:
        """Those that there are now: a cluster loses hosts and gains them."""

    def start(self, place: Place, parcel: Path, order: Order) -> None:
        """Send an order, which lies in that folder with its jobs, to a place that has none."""

    def ended(self, timeout_s: float) -> list[Ended]:
        """What came to an end, after a wait that ends early where something does."""

    def lines(self) -> list[tuple[Place, str]]:
        """What the places said since the last call."""

    def stop(self) -> None:
        """End everything that is under way, and leave nothing running."""


def local_numbers(text: str) -> list[int] | None:
    """Numbers of the GPUs that `local:0,1` names; None for `ray`.

    Raises:
        SpecError: It is neither, or a number stands twice.
    """
    if text == RAY:
        return None
    if not re.fullmatch(LOCAL + r"\d+(,\d+)*", text):
        raise SpecError(f"--places {text}: no such places; {HOW}")
    numbers = [int(number) for number in text.removeprefix(LOCAL).split(",")]
    if len(set(numbers)) < len(numbers):
        raise SpecError(f"--places {text}: a number stands twice")
    return numbers
