"""How many rounds a sweep has: by an option, by the config, or by a rule where nobody says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarker.core.errors import SpecError

if TYPE_CHECKING:
    from benchmarker.schema.experiment import ExperimentBase
    from benchmarker.sweep.folder import SweepFile

QUICK_ROUNDS = 1
PUBLISH_ROUNDS = 10
MOST_ROUNDS = 10
"""Where neither the config nor an option says how many rounds there are."""


def rounds_of(rounds: int | None, *, quick: bool, publish: bool) -> int | None:
    """How many rounds the options ask for; None if none of them does.

    Raises:
        SpecError: More than one of them does.
    """
    choices = [
        number
        for number, is_wanted in ((rounds, rounds), (QUICK_ROUNDS, quick), (PUBLISH_ROUNDS, publish))
        if is_wanted
    ]
    if len(choices) > 1:
        raise SpecError("--rounds, --quick (1) and --publish (10) say the same thing; give one of them")
    return choices[0] if choices else None


def most_rounds(
    max_rounds: int | None, rounds: int | None, *, before: SweepFile | None, experiment: ExperimentBase
) -> int | None:
    """Up to how many rounds are added while an interval is wide; None where none is.

    Args:
        max_rounds: The value of --max-rounds; None where it is not set.
        rounds: The rounds that another option asks for; where one does, none are added.
        before: The sweep that is resumed; None for a new one.
    """
    if max_rounds or rounds:
        return max_rounds
    if before:
        return before.max_rounds
    return None if "rounds" in experiment.procedure.model_fields_set else MOST_ROUNDS
