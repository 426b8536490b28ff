"""Explanations as markdown: the waterfalls side by side, then each variant's reason, proof and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from benchmarker.comparison.words import cell_words
from benchmarker.core.numbers import percent
from benchmarker.core.tables import Column, bullets, escaped, table
from benchmarker.core.units import MISSING
from benchmarker.explain.difference import Contrast
from benchmarker.explain.values import Bound, Explanation, NotExplained, Part, PartName

ACROSS = 4
"""Variants side by side in a table that a terminal of 80 columns holds."""


def explanations_to_markdown(
    found: Sequence[Explanation | NotExplained],
    *,
    contrasts: Sequence[Contrast] = (),
    ceilings: Sequence[str] = (),
    break_evens: Sequence[str] = (),
    baseline: str = "",
) -> str:
    """All of it.

    Args:
        ceilings: What graphs were predicted to reach and reached, in finished sentences.
        break_evens: The same of when a variant has paid for itself.
        baseline: That the differences are against.
    """
    explained = [one for one in found if isinstance(one, Explanation)]
    parts = [_waterfalls(explained[start : start + ACROSS]) for start in range(0, len(explained), ACROSS)]
    shared = _shared(explained)
    parts.append(bullets(shared))
    parts += [_variant(one, said=shared) for one in explained]
    if contrasts:
        parts.append(f"**Against {escaped(baseline)}**")
        parts.append(bullets(f"{one.sentence()}." for one in contrasts))
    if ceilings:
        parts += ["**Predicted and measured**", bullets(f"{one}." for one in ceilings)]
    if break_evens:
        parts += ["**When it has paid for itself**", bullets(f"{one}." for one in break_evens)]
    missing = [one for one in found if isinstance(one, NotExplained)]
    if missing:
        parts.append(bullets(_not_explained(one) for one in missing))
    return "\n\n".join(filter(None, parts))


def _not_explained(one: NotExplained) -> str:
    said = f"{escaped(one.variant)} {_why_not(one)}"
    if one.proof is None:
        return said
    facts = [*(f"**{line}**" for line in one.proof.warnings), *one.proof.lines]
    return f"{said} What was loaded: {'; '.join(facts)}."


def _why_not(one: NotExplained) -> str:
    return f"is not explained: {escaped(one.why, longest=300)}."


def reasons(found: Sequence[Explanation | NotExplained], contrasts: Sequence[Contrast] = ()) -> tuple[str, ...]:
    """One short paragraph a variant, for under a table of results."""
    against = {one.variant: f" {one.sentence()}." for one in contrasts}
    return tuple(
        f"**{escaped(one.variant)}** {bound_words(one.verdict.bound)}: {one.verdict.reason} {one.verdict.advice}"
        f"{against.get(one.variant, '')}{''.join(f' **{line}.**' for line in one.proof.warnings)}"
        if isinstance(one, Explanation)
        else f"**{escaped(one.variant)}** {_why_not(one)}"
        for one in found
        if isinstance(one, Explanation) or one.has_profile
    )


def bound_words(bound: Bound) -> str:
    """`is bound by **copies**`."""
    return "has **mixed** bounds" if bound == "mixed" else f"is bound by **{bound}**"


def _waterfalls(explained: Sequence[Explanation]) -> str:
    """Milliseconds a token by part, a column a variant; a part that none has is left out."""
    if not explained:
        return ""
    names = [name for name in get_args(PartName) if any(_part(one, name) for one in explained)]
    lines: list[tuple[str, ...]] = [(name, *(_milliseconds(_part(one, name)) for one in explained)) for name in names]
    lines.append(("**a token, measured**", *(f"**{1e3 * one.waterfall.total_s:.2f}**" for one in explained)))
    lines.append(("busy", *(percent(one.waterfall.busy_share) for one in explained)))
    if any(one.mbu is not None for one in explained):
        lines.append(("MBU", *(MISSING if one.mbu is None else percent(one.mbu) for one in explained)))
    lines.append(("bound by", *(one.verdict.bound for one in explained)))
    columns = [Column[tuple[str, ...]]("ms a token", lambda line: line[0], "left")]
    columns += [_column(index, one) for index, one in enumerate(explained, 1)]
    cells = {one.cell for one in explained}
    where = f"**At {cell_words(explained[0].cell)}**\n\n" if len(cells) == 1 else ""
    return f"{where}{table(columns, lines)}"


def _column(index: int, one: Explanation) -> Column[tuple[str, ...]]:
    return Column(escaped(one.variant), lambda line: line[index])


def _part(one: Explanation, name: PartName) -> Part | None:
    return next((part for part in one.waterfall.parts if part.name == name), None)


def _milliseconds(part: Part | None) -> str:
    return MISSING if part is None else f"{1e3 * part.seconds:.2f}"


def _shared(explained: Sequence[Explanation]) -> tuple[str, ...]:
    """Notes that hold for all of several variants, to be said once."""
    if len(explained) < 2:
        return ()
    return tuple(note for note in explained[0].notes if all(note in one.notes for one in explained))


def _variant(one: Explanation, *, said: tuple[str, ...]) -> str:
    """The verdict, and the numbers and facts behind it but those that were said already."""
    shown = [*(f"**{line}**" for line in one.proof.warnings), *one.proof.lines]
    if one.prefill:
        shown.append(one.prefill)
    shown += [note for note in one.notes if note not in said]
    head = f"**{escaped(one.variant)}** ({escaped(one.runtime)}) {bound_words(one.verdict.bound)}"
    return f"{head}: {one.verdict.reason} {one.verdict.advice}\n\n{bullets(shown)}"
