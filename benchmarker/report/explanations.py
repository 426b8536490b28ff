"""Explanations as markdown: the waterfalls side by side, then each variant's reason, proof and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from benchmarker.comparison.words import cell_words, listed
from benchmarker.core.numbers import percent
from benchmarker.core.tables import Column, bullets, escaped, table
from benchmarker.core.units import MISSING
from benchmarker.explain.difference import Contrast
from benchmarker.explain.numbers import rate
from benchmarker.explain.values import Ceiling, Explanation, NotExplained, Part, Share, ShareName, part_names
from benchmarker.explain.verdict import gain_words, share_words

SHARES_ARE = "Below the measured time: its shares, and in brackets how many times as fast it would be without one."
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
    parts += [SHARES_ARE] if explained else []
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
    if one.allows:
        return f"is {one.allows}."
    return f"is not explained: {escaped(one.why, longest=300)}."


def reasons(found: Sequence[Explanation | NotExplained]) -> tuple[str, ...]:
    """One short paragraph a cause, for under a table of results: variants that wait for the same share a line."""
    causes: dict[tuple[str, str], list[Explanation]] = {}
    warnings: dict[str, list[str]] = {}
    for one in found:
        if isinstance(one, Explanation):
            causes.setdefault((one.verdict.bound, one.verdict.advice), []).append(one)
            for line in one.proof.warnings:
                warnings.setdefault(line, []).append(one.variant)
    return (
        *(_cause(members) for members in causes.values()),
        *(f"**{listed(names)}**: {line}." for line, names in warnings.items()),
        *(
            f"**{escaped(one.variant)}** {_why_not(one)}"
            for one in found
            if isinstance(one, NotExplained) and one.least_share
        ),
    )


def _cause(members: Sequence[Explanation]) -> str:
    """`**fp16 and int8** are bound by **host**: gaps 62 to 82 % of each token (2.62x to 5.56x without). ...`."""
    first = members[0]
    names, verdict = listed(one.variant for one in members), first.verdict
    if len(members) == 1:
        return f"**{names}** is bound by **{verdict.bound}**: {verdict.reason} {verdict.advice}"
    largest = [_main(one) for one in members]
    kinds = dict.fromkeys(share.name for share in largest)
    parts = ", ".join(_range([share for share in largest if share.name == name]) for name in kinds)
    return f"**{names}** are bound by **{verdict.bound}**: {parts} of each {first.unit}. {verdict.advice}"


def _main(one: Explanation) -> Share:
    """The share that the verdict is about."""
    if one.verdict.bounds[0] in ("bandwidth", "compute"):
        return next(share for share in one.shares if share.name == "floor")
    return max((share for share in one.shares if share.name != "not listed"), key=lambda share: share.avoidable_s)


def _range(shares: Sequence[Share]) -> str:
    """The same share of several variants."""
    least, most = min(shares, key=lambda share: share.of_total), max(shares, key=lambda share: share.of_total)
    if least is most:
        return share_words(least)
    gains = sorted(share.speed_up for share in shares)
    how = "with less" if least.name == "floor" else "without"
    return (
        f"{least.label} {percent(least.of_total).removesuffix(' %')} to {percent(most.of_total)} "
        f"({gains[0]:.2f}x to {gains[-1]:.2f}x {how})"
    )


def _waterfalls(explained: Sequence[Explanation]) -> str:
    """Milliseconds a unit by part, a column a variant, without parts that none has; then what of it is avoidable."""
    if not explained:
        return ""
    unit = explained[0].unit
    names = part_names(explained)
    lines: list[tuple[str, ...]] = [(name, *(_milliseconds(_part(one, name)) for one in explained)) for name in names]
    lines.append((f"**a {unit}, measured**", *(f"**{1e3 * one.waterfall.total_s:.2f}**" for one in explained)))
    labels = {share.name: share.label for one in explained for share in one.shares}
    lines += [
        (labels[name], *(_gain(one, name) for one in explained)) for name in get_args(ShareName) if name in labels
    ]
    if any(one.mbu is not None for one in explained):
        lines.append(("MBU", *(MISSING if one.mbu is None else percent(one.mbu) for one in explained)))
    lines.append(("bound by", *(one.verdict.bound for one in explained)))
    columns = [Column[tuple[str, ...]](f"ms a {unit}", lambda line: line[0], "left")]
    columns += [_column(index, one) for index, one in enumerate(explained, 1)]
    cells = {one.cell for one in explained}
    where = f"**At {cell_words(explained[0].cell)}**\n\n" if len(cells) == 1 and explained[0].cell else ""
    return f"{where}{table(columns, lines)}"


def _gain(one: Explanation, name: ShareName) -> str:
    """`42 % (1.72x)`: a share, and how many times as fast the unit would be without what of it is avoidable."""
    share = next((share for share in one.shares if share.name == name), None)
    if share is None:
        return MISSING
    return f"{percent(share.of_total)}{gain_words(share)}"


def _column(index: int, one: Explanation) -> Column[tuple[str, ...]]:
    return Column(escaped(one.variant), lambda line: line[index])


def _part(one: Explanation, name: str) -> Part | None:
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
    form = f" ({', '.join(map(escaped, one.form.values()))})" if one.form else ""
    if one.ceiling:
        shown.insert(0, f"in a replayed graph {ceiling_words(one.ceiling, one.unit)}")
    head = f"**{escaped(one.variant)}**{form} is bound by **{one.verdict.bound}**"
    return f"{head}: {one.verdict.reason} {one.verdict.advice}\n\n{bullets(shown)}"


def ceiling_words(ceiling: Ceiling, unit: str) -> str:
    """`136 to 161 tok/s`."""
    most = rate(ceiling.per_s, unit)
    if ceiling.least_per_s is None:
        return f"at most {most}, the kernels' time alone"
    return f"{rate(ceiling.least_per_s, unit).split()[0]} to {most}"
