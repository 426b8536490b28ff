"""What models of each mixer learned: accuracy beside chance, bits a token, and whether a difference is more than luck.

Accuracies pool the tokens of all seeds, with Wilson's interval (Wilson, J. Am. Stat. Assoc. 22, 1927). Trainings from
different seeds differ by more than that interval knows, so each seed's accuracy stands beside it, and bits a token are
compared pair by pair: the seeds of two mixers share their data and its order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from benchmarker.core.formatting import MISSING, decimal, percent
from benchmarker.core.stats import Estimate, estimate, paired_ratio, verdicts
from benchmarker.core.tables import Column, Sheet, escaped
from benchmarker.workloads.mixers.reading.rows import MixersRow
from benchmarker.workloads.mixers.record import TaskScore

NORMAL_95 = 1.959964
TEXT = "bytes"
"""The task whose answer is no accuracy."""


class Learned(NamedTuple):
    """One variant in one task and size, over its seeds."""

    variant: str
    scores: tuple[TaskScore, ...]
    verdict: str | None
    """Of its bits a token against the baseline's."""

    @property
    def accuracy(self) -> tuple[float, float, float]:
        """Share that was right, with the lower and the upper end of Wilson's interval."""
        return wilson(sum(score.right for score in self.scores), sum(score.asked for score in self.scores))

    @property
    def luck(self) -> str:
        """Whether guessing does as well, or better; nothing where the model does better."""
        _, low, high = self.accuracy
        chance = self.scores[0].chance
        return "" if chance < low else ", below chance" if high < chance else ", at chance"

    @property
    def bits(self) -> Estimate:
        return estimate([score.bits for score in self.scores])


def wilson(right: int, total: int) -> tuple[float, float, float]:
    """A share with its 95 % interval, which stays inside 0 and 1 and is right for few."""
    share, square = right / total, NORMAL_95**2
    middle = (share + square / (2 * total)) / (1 + square / total)
    half = NORMAL_95 / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total**2))
    return share, max(0.0, middle - half), min(1.0, middle + half)


def learned(rows: Sequence[MixersRow]) -> list[Learned]:
    """Of all variants, task by task. The rows are of one cell, so that every variant is there once."""
    by_task: dict[tuple[str, int], dict[str, list[TaskScore]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for score in row.tasks:
            by_task[score.task, score.size][row.variant].append(score)
    baseline = next((row.variant for row in rows if row.is_baseline), None)
    return [entry for of_variant in by_task.values() for entry in _against(of_variant, baseline)]


def _against(of_variant: dict[str, list[TaskScore]], baseline: str | None) -> list[Learned]:
    """The variants of one task, with the verdicts of their bits: fewer bits are as a faster time."""
    bits = {name: {score.seed: score.bits for score in scores} for name, scores in of_variant.items()}
    others = [name for name in bits if name != baseline]
    words: dict[str, str] = {}
    if baseline in bits:
        ratios = [paired_ratio(bits[baseline], bits[name]) for name in others]
        named = {"faster": "fewer bits", "slower": "more bits"}
        for name, verdict in zip(others, verdicts(ratios), strict=True):
            words[name] = named.get(verdict, verdict)
        words[baseline] = "baseline"
    return [Learned(name, tuple(scores), words.get(name)) for name, scores in of_variant.items()]


def task_sheets(rows: Sequence[MixersRow]) -> list[Sheet]:
    """The table of what was learned; none where nothing was asked."""
    entries = learned(rows)
    return [Sheet("Tasks", COLUMNS, entries, (NOTE,))] if entries else []


def _accuracy(entry: Learned) -> str:
    if entry.scores[0].task == TEXT:
        return MISSING
    share, low, high = (percent(value, places=1).removesuffix(" %") for value in entry.accuracy)
    return f"{share} [{low}, {high}]"


def _by_seed(entry: Learned) -> str:
    if entry.scores[0].task == TEXT:
        return MISSING
    return " ".join(f"{100 * score.right / score.asked:.0f}" for score in entry.scores)


def _chance(entry: Learned) -> str:
    if entry.scores[0].task == TEXT:
        return MISSING
    return f"{100 * entry.scores[0].chance:.1f}" + entry.luck


def _bits(entry: Learned) -> str:
    bits = entry.bits
    if bits.low is None or bits.high is None:
        return decimal(bits.value)
    return f"{decimal(bits.value)} [{decimal(bits.low)}, {decimal(bits.high)}]"


COLUMNS: Sequence[Column[Learned]] = (
    Column("task", lambda entry: entry.scores[0].task, "left"),
    Column("size", lambda entry: str(entry.scores[0].size)),
    Column("variant", lambda entry: escaped(entry.variant), "left"),
    Column("right %", _accuracy),
    Column("by seed", _by_seed),
    Column("chance %", _chance),
    Column("bits a token", _bits),
    Column("bits against the baseline", lambda entry: entry.verdict or MISSING),
    Column("parameters M", lambda entry: f"{entry.scores[0].parameters / 1e6:.3f}"),
    Column("steps", lambda entry: str(entry.scores[0].steps)),
)
NOTE = (
    "Each model was trained on the task from fresh weights, with the same steps and data for every mixer, and judged "
    "on data that it was not trained on. Right: all seeds together with Wilson's 95 % interval; chance is guessing "
    "among the values of the sequence (mqar) or among all tokens (copy). Bits a token: for bytes of text, bits a byte; "
    "the verdict pairs the seeds, and is as strict as that of the times."
)
