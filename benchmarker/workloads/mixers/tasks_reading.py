"""Table of the tasks that models of each mixer learned: accuracy, chance, bits per token, and verdicts.

Accuracies pool the tokens of all seeds, with Wilson's interval (Wilson, J. Am. Stat. Assoc. 22, 1927). Trainings with
different seeds differ by more than that interval, so each seed's accuracy is shown too, and bits per token are compared
pair by pair: the seeds of two mixers share their data and its order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from benchmarker.core.formatting import MISSING, decimal, percent
from benchmarker.core.stats import Estimate, estimate, paired_ratio, verdicts
from benchmarker.core.tables import Column, Sheet, plain_line
from benchmarker.workloads.mixers.mixers_reading import MixersRow
from benchmarker.workloads.mixers.record import TaskScore

NORMAL_95 = 1.959964
"""97.5 % quantile of the normal distribution."""
BITS_VERDICTS = {"faster": "fewer bits", "slower": "more bits"}


class Learned(NamedTuple):
    """One variant in one task and size, over its seeds."""

    variant: str
    scores: tuple[TaskScore, ...]
    verdict: str | None
    """Verdict on its bits per token relative to the baseline's."""

    @property
    def is_text(self) -> bool:
        """True for text, whose result is not an accuracy."""
        return self.scores[0].task == "bytes"

    @property
    def accuracy(self) -> tuple[float, float, float]:
        """Share of correct tokens, with the ends of Wilson's interval."""
        return wilson(sum(score.right for score in self.scores), sum(score.asked for score in self.scores))

    @property
    def luck(self) -> str:
        """Suffix of chance if guessing is as accurate, or better."""
        _, low, high = self.accuracy
        chance = self.scores[0].chance
        return "" if chance < low else ", below chance" if high < chance else ", at chance"

    @property
    def bits(self) -> Estimate:
        return estimate([score.bits for score in self.scores])


def wilson(right: int, total: int) -> tuple[float, float, float]:
    """Return a share with its 95 % interval, which stays within 0 and 1 and holds for small numbers."""
    share, square = right / total, NORMAL_95**2
    middle = (share + square / (2 * total)) / (1 + square / total)
    half = NORMAL_95 / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total**2))
    return share, max(0.0, middle - half), min(1.0, middle + half)


def learned(rows: Sequence[MixersRow]) -> list[Learned]:
    """Return all variants, task by task. The rows are of one cell, so that each variant is there once."""
    by_task: dict[tuple[str, int], dict[str, list[TaskScore]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for score in row.tasks:
            by_task[score.task, score.size][row.variant].append(score)
    baseline = next((row.variant for row in rows if row.is_baseline), None)
    return [entry for by_variant in by_task.values() for entry in _with_verdicts(by_variant, baseline)]


def _with_verdicts(by_variant: dict[str, list[TaskScore]], baseline: str | None) -> list[Learned]:
    bits = {name: {score.seed: score.bits for score in scores} for name, scores in by_variant.items()}
    texts: dict[str, str] = {}
    if baseline in bits:
        others = [name for name in bits if name != baseline]
        ratios = [paired_ratio(bits[baseline], bits[name]) for name in others]
        for name, verdict in zip(others, verdicts(ratios), strict=True):
            texts[name] = BITS_VERDICTS.get(verdict, verdict)
        texts[baseline] = "baseline"
    return [Learned(name, tuple(scores), texts.get(name)) for name, scores in by_variant.items()]


def task_sheets(rows: Sequence[MixersRow]) -> list[Sheet]:
    """Return the table; none if no tasks were requested."""
    entries = learned(rows)
    return [Sheet("Tasks", COLUMNS, entries, (NOTE,))] if entries else []


def _accuracy(entry: Learned) -> str:
    share, low, high = (percent(value, places=1).removesuffix(" %") for value in entry.accuracy)
    return MISSING if entry.is_text else f"{share} [{low}, {high}]"


def _by_seed(entry: Learned) -> str:
    return MISSING if entry.is_text else " ".join(f"{100 * score.right / score.asked:.0f}" for score in entry.scores)


def _chance(entry: Learned) -> str:
    return MISSING if entry.is_text else f"{100 * entry.scores[0].chance:.1f}{entry.luck}"


def _bits(entry: Learned) -> str:
    bits = entry.bits
    if bits.low is None or bits.high is None:
        return decimal(bits.value)
    return f"{decimal(bits.value)} [{decimal(bits.low)}, {decimal(bits.high)}]"


COLUMNS: Sequence[Column[Learned]] = (
    Column("task", lambda entry: entry.scores[0].task, "left"),
    Column("size", lambda entry: str(entry.scores[0].size)),
    Column("variant", lambda entry: plain_line(entry.variant), "left"),
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
    "on held-out data. Right: all seeds together with Wilson's 95 % interval; chance is guessing among the values of "
    "the sequence (mqar) or among all tokens (copy). Bits per token: for text, bits per byte; the verdict pairs the "
    "seeds, and is as strict as the verdict on times."
)
