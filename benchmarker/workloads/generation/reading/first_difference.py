"""Where each row's greedy texts first differ from the baseline's, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarker.core.formatting import MISSING, significant
from benchmarker.core.tables import Column
from benchmarker.schema.quality import Quality

if TYPE_CHECKING:
    from benchmarker.workloads.generation.reading.rows import GenerationRow

ROUNDING_GAP = 0.05
"""Nats. Where the two likeliest tokens are nearer than that, 16-bit arithmetic in another order may swap them."""


@dataclass(frozen=True)
class FirstDifference:
    """Of one row's texts from the baseline's."""

    prompts: int
    """Texts that were compared."""
    same: int
    """Of these the equal ones."""
    token: int | None
    """Earliest token that differs, counted from 1; None where all texts are equal."""
    gap: float | None
    """Largest gap between the two likeliest tokens where a text first differs, in nats; None where it is not known."""

    @property
    def verdict(self) -> str:
        """What explains it."""
        if self.token is None:
            return "the same"
        if self.gap is None:
            return MISSING
        return "rounding" if self.gap <= ROUNDING_GAP else "more than rounding"


def first_difference(quality: Quality | None, baseline: Quality | None) -> FirstDifference | None:
    """None where either has no texts, or they followed other prompts."""
    if quality is None or baseline is None or quality.measured_on != baseline.measured_on:
        return None
    pairs = list(zip(quality.greedy, baseline.greedy, strict=False))
    if not pairs:
        return None
    places, gaps = [], []
    for text, standard in pairs:
        both = zip(text.tokens, standard.tokens, strict=False)
        place = next((number for number, (one, other) in enumerate(both) if one != other), None)
        if place is None:
            continue
        places.append(place)
        # The same tokens came before it, so that either engine's gap will do.
        gaps.append(next((known.gaps[place] for known in (standard, text) if known.gaps), None))
    known = [gap for gap in gaps if gap is not None]
    return FirstDifference(
        prompts=len(pairs),
        same=len(pairs) - len(places),
        token=min(places) + 1 if places else None,
        gap=max(known) if known and len(known) == len(gaps) else None,
    )


def difference_columns(rows: Sequence[GenerationRow]) -> list[Column[GenerationRow]]:
    """The columns of the table; none where no texts were compared."""
    if not any(row.first_difference for row in rows):
        return []
    return [
        Column["GenerationRow"]("variant", lambda row: row.variant, "left"),
        Column["GenerationRow"]("same text", _of(lambda found: f"{found.same} of {found.prompts}")),
        Column["GenerationRow"](
            "first difference", _of(lambda found: f"token {found.token}" if found.token else MISSING)
        ),
        Column["GenerationRow"]("gap", _of(lambda found: MISSING if found.gap is None else significant(found.gap, 2))),
        Column["GenerationRow"]("it is", _of(lambda found: found.verdict), "left"),
        Column["GenerationRow"]("KL divergence", _divergence),
    ]


def difference_caption(rows: Sequence[GenerationRow]) -> str:
    """How to read the table; empty where there is none."""
    found = next((row.first_difference for row in rows if row.first_difference), None)
    if found is None:
        return ""
    baseline = next((row.variant for row in rows if row.is_baseline), "the baseline")
    return (
        f"Greedy text after {found.prompts} fixed prompts, against {baseline}'s: the earliest token that differs, and "
        "the largest gap between the two likeliest tokens where a text first differs, in nats. Up to "
        f"{ROUNDING_GAP} it is rounding: another order of additions may swap the two. Above, the form or the engine "
        "computes something else; the KL divergence says how much."
    )


def _divergence(row: GenerationRow) -> str:
    return significant(row.quality.against.kl_mean, 3) if row.quality and row.first_difference else MISSING


def _of(text: Callable[[FirstDifference], str]) -> Callable[[GenerationRow], str]:
    return lambda row: text(row.first_difference) if row.first_difference else MISSING
