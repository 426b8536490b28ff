"""Blocks of `benchmarker explain`: waterfalls side by side, then each variant's bottleneck, evidence and advice."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, get_args

from benchmarker.comparison.results import lines_by_sweep
from benchmarker.comparison.rows import cell_words, grouped, listed
from benchmarker.core.formatting import MISSING, percent, plural, range_text, rate
from benchmarker.core.tables import Block, Column, Sheet, Text, bold, bullets, code, plain_line
from benchmarker.explain.explain import NOT_TESTED, Explanation, part_names
from benchmarker.explain.phases import Ceiling
from benchmarker.explain.verdict import gain_words, share_words
from benchmarker.explain.waterfall import NotExplained, Share, ShareName
from benchmarker.schema.registry import workload_of

if TYPE_CHECKING:
    from benchmarker.report.compare import Comparison


SHARES_ARE = (
    "Below the measured time: its shares, and in brackets how many times as fast it would be without one "
    "(the floor: with fewer bits)."
)
ACROSS = 4  # Number of variants side by side in a terminal of 80 columns.


def explained_blocks(comparison: Comparison) -> list[Block]:
    workload = workload_of(comparison.workload)
    explained = [explanation for explanation in comparison.explained if isinstance(explanation, Explanation)]
    missing = [explanation for explanation in comparison.explained if isinstance(explanation, NotExplained)]
    owners = grouped((fact, each.variant) for each in explained for fact in (*each.proof.lines, *each.notes))
    shared = {fact: names for fact, names in owners.items() if len(names) > 1}
    # A single variant has its reason and advice below.
    printed = comparison.reasons if len(comparison.explained) > 1 else ()
    verdicts = {row.call.verdict for row in comparison.rows if row.call}
    is_tested = any(contrast.speed_up.verdict != NOT_TESTED for contrast in comparison.contrasts)
    if_real = ", if the differences are real" if NOT_TESTED in verdicts else ""
    sections = {
        f"Relative to {plain_line(comparison.baseline or '')}{'' if is_tested else f' ({NOT_TESTED})'}": [
            contrast.sentence(is_tagged=is_tested) for contrast in comparison.contrasts
        ],
        "Predicted and measured": lines_by_sweep(comparison, lambda side: workload.predictions(side)[0]),
        f"When it has paid for itself{if_real}": lines_by_sweep(comparison, lambda side: workload.predictions(side)[1]),
    }
    return [
        bullets(printed),
        bullets(workload.header(comparison.records)),
        *(_waterfalls(explained[start : start + ACROSS]) for start in range(0, len(explained), ACROSS)),
        SHARES_ARE if explained else "",
        bullets(fact if len(names) == len(explained) else f"{listed(names)}: {fact}" for fact, names in shared.items()),
        *(block for explanation in explained for block in _variant(explanation, shared, printed)),
        *(
            block
            for title, sentences in sections.items()
            if sentences
            for block in (bold(title), bullets(f"{sentence}." for sentence in sentences))
        ),
        bullets(filter(None, (_not_explained(each, printed) for each in missing))),
    ]


def _not_explained(unexplained: NotExplained, printed: Sequence[str]) -> str:
    proof, why = unexplained.proof, _why_not(unexplained)
    warnings = [line for line in proof.warnings if not any(line in reason for reason in printed)] if proof else []
    facts = [*map(bold, warnings), *proof.lines] if proof else []
    if any(why in reason for reason in printed):
        return f"{plain_line(unexplained.variant)}, as loaded: {'; '.join(facts)}." if facts else ""
    loaded = f" What was loaded: {'; '.join(facts)}." if facts else ""
    return f"{plain_line(unexplained.variant)} {why}{loaded}"


def _why_not(unexplained: NotExplained) -> str:
    if unexplained.allows:
        return f"is {unexplained.allows}."
    return f"is not explained: {plain_line(unexplained.why, longest=300)}."


def without_why(explanations: Sequence[Explanation | NotExplained]) -> str:
    """Return the note of a table without the column `why`: the reason why its variants are not explained."""
    causes = list(dict.fromkeys(each.why for each in explanations if isinstance(each, NotExplained)))
    cause = causes[0] if causes else "the profiled cells are not in this table"
    others = f"; {plural(len(causes) - 1, 'more reason', 'more reasons')}: {code('benchmarker explain')}"
    return f"No column why: {plain_line(cause, longest=300)}{others if causes[1:] else ''}."


def reasons(explanations: Sequence[Explanation | NotExplained]) -> tuple[str, ...]:
    """Return a short paragraph per bottleneck. Variants with the same bottleneck and advice share a paragraph."""
    explained = [each for each in explanations if isinstance(each, Explanation)]
    causes = grouped(((each.verdict.bound, each.verdict.advice), each) for each in explained)
    warnings = grouped((line, each.variant) for each in explanations if each.proof for line in each.proof.warnings)
    unexplained = [
        f"{bold(plain_line(each.variant))} {_why_not(each)}"
        for each in explanations
        if isinstance(each, NotExplained) and each.least_share
    ]
    warned = (f"{bold(listed(names))}: {line}." for line, names in warnings.items())
    return *map(_cause, causes.values()), *warned, *unexplained


def _cause(members: Sequence[Explanation]) -> str:
    first = members[0]
    names, verdict = listed(member.variant for member in members), first.verdict
    if len(members) == 1:
        return f"{bold(names)} is bound by {bold(verdict.bound)}: {verdict.reason} {verdict.advice}"
    shares = grouped((share.name, share) for share in map(_main_share, members))
    parts = ", ".join(map(_range, shares.values()))
    return f"{bold(names)} are bound by {bold(verdict.bound)}: {parts} of each {first.unit}. {verdict.advice}"


def _main_share(explanation: Explanation) -> Share:
    if explanation.verdict.bounds[0] in ("bandwidth", "compute"):
        return next(share for share in explanation.shares if share.name == "floor")
    listed_shares = (share for share in explanation.shares if share.name != "not listed")
    return max(listed_shares, key=lambda share: share.avoidable_s)


def _range(shares: Sequence[Share]) -> str:
    least, *others = sorted(shares, key=lambda share: share.of_total)
    if not others:
        return share_words(least)
    parts = range_text([percent(share.of_total).removesuffix(" %") for share in (least, *others)])
    gains = range_text([f"{gain:.2f}x" for gain in sorted(share.speed_up for share in shares)])
    return f"{least.label} {parts} % ({gains} {'with less' if least.name == 'floor' else 'without'})"


def _waterfalls(explained: Sequence[Explanation]) -> Sheet:
    unit = explained[0].unit
    labels = {share.name: share.label for explanation in explained for share in explanation.shares}
    parts = part_names(explained)
    shares = [name for name in get_args(ShareName) if name in labels]
    mbu = ["MBU"] if any(explanation.mbu is not None for explanation in explained) else []
    headings = [*parts, Text(bold(f"a {unit}, measured")), *(labels[name] for name in shares), *mbu]
    texts = [_waterfall_texts(explanation, parts, shares, has_mbu=bool(mbu)) for explanation in explained]
    columns = [
        Column[int](f"ms a {unit}", headings.__getitem__, "left"),
        *(Column[int](each.variant, lines.__getitem__) for each, lines in zip(explained, texts, strict=True)),
    ]
    cells = {explanation.cell for explanation in explained}
    names = listed(explanation.variant for explanation in explained)
    title = f"{names} at {cell_words(explained[0].cell)}" if len(cells) == 1 and explained[0].cell else ""
    return Sheet(title, columns, range(len(headings)))


def _waterfall_texts(
    explanation: Explanation, parts: Sequence[str], names: Sequence[ShareName], *, has_mbu: bool
) -> list[str]:
    times_ms = {part.name: f"{1e3 * part.seconds:.2f}" for part in explanation.waterfall}
    shares = {share.name: f"{percent(share.of_total)}{gain_words(share)}" for share in explanation.shares}
    return [
        *(times_ms.get(name, MISSING) for name in parts),
        Text(bold(f"{1e3 * explanation.total_s:.2f}")),
        *(shares.get(name, MISSING) for name in names),
        *([MISSING if explanation.mbu is None else percent(explanation.mbu)] if has_mbu else []),
    ]


def _variant(explanation: Explanation, shared: Container[str], printed: Sequence[str]) -> list[Block]:
    """Return a variant's facts without `shared`, after the verdict if no reason is `printed` above."""

    def is_new(fact: str) -> bool:
        return fact not in shared and not any(fact in reason for reason in printed)

    verdict, facts = explanation.verdict, []
    if explanation.ceiling:
        facts.append(f"in a replayed graph {ceiling_words(explanation.ceiling, explanation.unit)}")
    facts += [*map(bold, filter(is_new, explanation.proof.warnings)), *filter(is_new, explanation.proof.lines)]
    if explanation.prefill:
        facts.append(explanation.prefill)
    facts += filter(is_new, explanation.notes)
    form = f" ({', '.join(map(plain_line, explanation.form.values()))})" if explanation.form else ""
    head = f"{bold(plain_line(explanation.variant))}{form}"
    if printed:
        facts = [*filter(is_new, verdict.details), *facts]
        return [head, bullets(facts)] if facts else []
    return [f"{head} is bound by {bold(verdict.bound)}: {verdict.reason} {verdict.advice}", bullets(facts)]


def ceiling_words(ceiling: Ceiling, unit: str) -> str:
    """Return `136 to 161 tok/s`, or `at most 161 tok/s, the kernels' time alone` if there is no lower limit."""
    most = rate(ceiling.per_s, unit)
    if ceiling.least_per_s is None:
        return f"at most {most}, the kernels' time alone"
    number, noun = most.split()
    return f"{range_text([rate(ceiling.least_per_s, unit).split()[0], number])} {noun}"
