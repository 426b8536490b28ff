"""Blocks of `benchmarker explain`: waterfalls side by side, then each variant's reason, proof and advice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, get_args

from benchmarker.comparison.rows import cell_words, listed
from benchmarker.core.formatting import MISSING, percent
from benchmarker.core.tables import Block, Column, Sheet, Text, bold, bullets, plain_line
from benchmarker.explain.explain import Contrast
from benchmarker.explain.values import Ceiling, Explanation, NotExplained, Share, ShareName, part_names, rate
from benchmarker.explain.verdict import gain_words, share_words
from benchmarker.schema.registry import workload_of

if TYPE_CHECKING:
    from benchmarker.report.compare import Comparison


SHARES_ARE = "Below the measured time: its shares, and in brackets how many times as fast it would be without one."
ACROSS = 4
"""Number of variants side by side in a terminal of 80 columns."""
Line = tuple[str, Callable[[Explanation], str]]
"""Heading of a line, and the function that returns its cell for a variant."""


def explanation_blocks(
    explanations: Sequence[Explanation | NotExplained],
    *,
    contrasts: Sequence[Contrast] = (),
    ceilings: Sequence[str] = (),
    break_evens: Sequence[str] = (),
    baseline: str = "",
) -> list[Block]:
    """Return the blocks below the header.

    Args:
        contrasts: Each variant compared with the baseline.
        ceilings: Sentences on predicted and measured rates of graphs, without full stop.
        break_evens: Sentences on amortized set-up, without full stop.
        baseline: Name of the variant in the contrasts.
    """
    explained = [explanation for explanation in explanations if isinstance(explanation, Explanation)]
    parts: list[Block] = [_waterfalls(explained[at : at + ACROSS]) for at in range(0, len(explained), ACROSS)]
    shared = _shared(explained)
    parts += [SHARES_ARE] if explained else []
    parts.append(bullets(shared))
    for explanation in explained:
        parts += _variant(explanation, shared=shared)
    if contrasts:
        parts.append(bold(f"Relative to {plain_line(baseline)}"))
        parts.append(bullets(f"{contrast.sentence()}." for contrast in contrasts))
    if ceilings:
        parts += [bold("Predicted and measured"), bullets(f"{sentence}." for sentence in ceilings)]
    if break_evens:
        parts += [bold("When it has paid for itself"), bullets(f"{sentence}." for sentence in break_evens)]
    missing = [explanation for explanation in explanations if isinstance(explanation, NotExplained)]
    if missing:
        parts.append(bullets(_not_explained(unexplained) for unexplained in missing))
    return parts


def _not_explained(unexplained: NotExplained) -> str:
    sentence = f"{plain_line(unexplained.variant)} {_why_not(unexplained)}"
    if unexplained.proof is None:
        return sentence
    facts = [*(bold(line) for line in unexplained.proof.warnings), *unexplained.proof.lines]
    return f"{sentence} What was loaded: {'; '.join(facts)}."


def _why_not(unexplained: NotExplained) -> str:
    if unexplained.allows:
        return f"is {unexplained.allows}."
    return f"is not explained: {plain_line(unexplained.why, longest=300)}."


def reasons(explanations: Sequence[Explanation | NotExplained]) -> tuple[str, ...]:
    """Return one short paragraph per cause. Variants with one cause share a paragraph."""
    causes: dict[tuple[str, str], list[Explanation]] = {}
    warnings: dict[str, list[str]] = {}
    for explanation in explanations:
        if isinstance(explanation, Explanation):
            causes.setdefault((explanation.verdict.bound, explanation.verdict.advice), []).append(explanation)
            for line in explanation.proof.warnings:
                warnings.setdefault(line, []).append(explanation.variant)
    return (
        *(_cause(members) for members in causes.values()),
        *(f"{bold(listed(names))}: {line}." for line, names in warnings.items()),
        *(
            f"{bold(plain_line(explanation.variant))} {_why_not(explanation)}"
            for explanation in explanations
            if isinstance(explanation, NotExplained) and explanation.least_share
        ),
    )


def _cause(members: Sequence[Explanation]) -> str:
    first = members[0]
    names, verdict = listed(member.variant for member in members), first.verdict
    if len(members) == 1:
        return f"{bold(names)} is bound by {bold(verdict.bound)}: {verdict.reason} {verdict.advice}"
    largest = [_main_share(member) for member in members]
    kinds = dict.fromkeys(share.name for share in largest)
    parts = ", ".join(_range([share for share in largest if share.name == name]) for name in kinds)
    return f"{bold(names)} are bound by {bold(verdict.bound)}: {parts} of each {first.unit}. {verdict.advice}"


def _main_share(explanation: Explanation) -> Share:
    if explanation.verdict.bounds[0] in ("bandwidth", "compute"):
        return next(share for share in explanation.shares if share.name == "floor")
    listed_shares = (share for share in explanation.shares if share.name != "not listed")
    return max(listed_shares, key=lambda share: share.avoidable_s)


def _range(shares: Sequence[Share]) -> str:
    least, most = min(shares, key=lambda share: share.of_total), max(shares, key=lambda share: share.of_total)
    if least is most:
        return share_words(least)
    gains = sorted(share.speed_up for share in shares)
    how = "with less" if least.name == "floor" else "without"
    return (
        f"{least.label} {percent(least.of_total).removesuffix(' %')} to {percent(most.of_total)} "
        f"({gains[0]:.2f}x to {gains[-1]:.2f}x {how})"
    )


def _waterfalls(explained: Sequence[Explanation]) -> Sheet:
    """Return the table of milliseconds per unit, with a column per variant and a line per part."""
    unit = explained[0].unit
    labels = {share.name: share.label for explanation in explained for share in explanation.shares}
    has_mbu = any(explanation.mbu is not None for explanation in explained)
    lines: list[Line] = [
        *((name, _part_ms(name)) for name in part_names(explained)),
        (Text(bold(f"a {unit}, measured")), _total_ms),
        *((labels[name], _share_of_total(name)) for name in get_args(ShareName) if name in labels),
        *([("MBU", _mbu)] if has_mbu else []),
        ("bound by", lambda explanation: explanation.verdict.bound),
    ]
    columns = [Column[Line](f"ms a {unit}", lambda line: line[0], "left"), *map(_column, explained)]
    cells = {explanation.cell for explanation in explained}
    names = listed(explanation.variant for explanation in explained)
    title = f"{names} at {cell_words(explained[0].cell)}" if len(cells) == 1 and explained[0].cell else ""
    return Sheet(title, columns, lines)


def _total_ms(explanation: Explanation) -> str:
    return Text(bold(f"{1e3 * explanation.waterfall.total_s:.2f}"))


def _column(explanation: Explanation) -> Column[Line]:
    return Column(explanation.variant, lambda line: line[1](explanation))


def _part_ms(name: str) -> Callable[[Explanation], str]:
    def text(explanation: Explanation) -> str:
        part = next((part for part in explanation.waterfall.parts if part.name == name), None)
        return MISSING if part is None else f"{1e3 * part.seconds:.2f}"

    return text


def _share_of_total(name: ShareName) -> Callable[[Explanation], str]:
    def text(explanation: Explanation) -> str:
        share = next((share for share in explanation.shares if share.name == name), None)
        return MISSING if share is None else f"{percent(share.of_total)}{gain_words(share)}"

    return text


def _mbu(explanation: Explanation) -> str:
    return MISSING if explanation.mbu is None else percent(explanation.mbu)


def _shared(explained: Sequence[Explanation]) -> tuple[str, ...]:
    if len(explained) < 2:
        return ()
    return tuple(note for note in explained[0].notes if all(note in explanation.notes for explanation in explained))


def _variant(explanation: Explanation, *, shared: tuple[str, ...]) -> list[Block]:
    """Return a variant's verdict and the facts behind it.

    Args:
        shared: Notes of all variants, which are printed already.
    """
    facts = [*(bold(line) for line in explanation.proof.warnings), *explanation.proof.lines]
    if explanation.prefill:
        facts.append(explanation.prefill)
    facts += [note for note in explanation.notes if note not in shared]
    form = f" ({', '.join(map(plain_line, explanation.form.values()))})" if explanation.form else ""
    if explanation.ceiling:
        facts.insert(0, f"in a replayed graph {ceiling_words(explanation.ceiling, explanation.unit)}")
    head = f"{bold(plain_line(explanation.variant))}{form} is bound by {bold(explanation.verdict.bound)}"
    return [f"{head}: {explanation.verdict.reason} {explanation.verdict.advice}", bullets(facts)]


def ceiling_words(ceiling: Ceiling, unit: str) -> str:
    """Return `136 to 161 tok/s`."""
    most = rate(ceiling.per_s, unit)
    if ceiling.least_per_s is None:
        return f"at most {most}, the kernels' time alone"
    return f"{rate(ceiling.least_per_s, unit).split()[0]} to {most}"


def explained_blocks(comparison: Comparison) -> list[Block]:
    """Return a line per cause, the header, the waterfalls, each variant's reason and the differences."""
    workload = workload_of(comparison.workload)
    # With one variant the reason comes first anyway.
    causes = bullets(comparison.reasons) if len(comparison.explained) > 1 else ""
    ceilings, break_evens = workload.predictions(comparison)
    return [
        causes,
        bullets(workload.header(comparison.records)),
        *explanation_blocks(
            comparison.explained,
            contrasts=comparison.contrasts,
            ceilings=ceilings,
            break_evens=break_evens,
            baseline=comparison.baseline or "",
        ),
    ]
