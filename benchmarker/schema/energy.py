"""What a record says of energy: windows of whole generations, counted by the board."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from benchmarker.schema.base import Joules, Number, Plain, Positive, Seconds


class EnergyWindow(Plain):
    """Whole generations, back to back, for at least ten seconds."""

    seconds: Seconds
    energy_j: Joules
    """Of the whole board, by its driver's counter, idle power included."""
    generations: Positive
    temperature_before_c: Number | None = None
    temperature_after_c: Number | None = None


class Energy(Plain):
    """What a cell's generations cost, counted apart from the timed repeats."""

    idle_power_w: Number | None = None
    """Of the board with the model loaded and nothing to do, by the same counter."""
    generation: Annotated[tuple[EnergyWindow, ...], Field(min_length=1)]
    """At the cell's shape."""
    prefill: tuple[EnergyWindow, ...] = ()
    """The same with one new token. Empty where the cell has no more."""
