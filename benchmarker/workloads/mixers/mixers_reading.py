"""Evaluation of mixers' records: rows, the floor of a call's time, and sentences on its growth with the length.

    floor = max(FLOPs / matmul rate, bytes of inputs and outputs / bandwidth)

The time of a training step is not explained, because its record has only the kernels of the mixer; the time of a call
on a CPU is not explained, because the operators of a mixer cannot be identified.

The accuracy of a task is that of all seeds together, with Wilson's interval (Wilson, J. Am. Stat. Assoc. 22, 1927).
Accuracies of different seeds differ by more than this interval and are also shown. Bits per token of two mixers are
compared seed by seed, because the data and their order are the same for equal seeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from benchmarker.comparison.crossing import SpeedUps, constant_verdict, crossings
from benchmarker.comparison.results import by_round
from benchmarker.comparison.roofline import floor_of
from benchmarker.comparison.rows import CellKey, Row, cell_of, grouped
from benchmarker.comparison.speed_up import SpeedUp, paired_speed_ups
from benchmarker.core.formatting import MISSING, decimal, gib, percent
from benchmarker.core.stats import estimate, paired_ratio, verdicts, wilson
from benchmarker.core.tables import Column, Sheet, plain_line
from benchmarker.explain.waterfall import NotExplained, Timed
from benchmarker.profiling.kernel_categories import seconds_by_category
from benchmarker.schema.record import Moment
from benchmarker.workloads.mixers.mixer import SOFTMAX
from benchmarker.workloads.mixers.record import MixersCell, MixersRecord, TaskScore
from benchmarker.workloads.operation.operation_reading import kernels_note, largest_call, length_series, timed_call

OUT_OF_MEMORY = ("oom_gpu", "oom_host")


@dataclass(frozen=True)
class MixersRow(Row):
    misfit: MixersCell | None = None  # The row's cell if it ran out of memory.
    kernels_by_round: dict[Moment, float] = field(default_factory=dict)
    """Seconds of all kernels of one profiled call, by round. Empty on a CPU and for a training step, whose record has
    only the kernels of the mixer."""
    tasks: tuple[TaskScore, ...] = ()
    mixer_share: float | None = None
    """Share of the mixers in the FLOPs of a training step: the largest share that another mixer can save."""

    @property
    def is_softmax(self) -> bool:
        return self.form["mixer"] == SOFTMAX.name


def make_mixers_row(
    fields: dict[str, Any], records: Sequence[MixersRecord], good: Sequence[tuple[Any, Any]]
) -> MixersRow:
    def kernels_s(cell: Any, _: object) -> float:
        return float(sum(kernel.total_s for kernel in cell.kernels))

    newest = sorted(records, key=lambda record: record.started_at, reverse=True)
    demand = good[0][1].demand if good else None
    has_kernels = all(
        record.environment.device.kind != "cpu" and not cell.block and cell.kernels for record, cell in good
    )
    cells = [cast("MixersCell | None", cell_of(record, fields["cell"])) for record in records]
    misfits = [cell for cell in cells if cell and cell.status in OUT_OF_MEMORY and cell.least_bytes is not None]
    return MixersRow(
        **fields,
        kernels_by_round=by_round(good, kernels_s) if has_kernels else {},
        tasks=next((record.tasks for record in newest if record.tasks), ()),
        mixer_share=demand.mixer_flops / demand.flops if demand and demand.mixer_flops else None,
        misfit=misfits[-1] if misfits and fields["status"] in OUT_OF_MEMORY else None,
    )


def timed_mixer(name: str, records: Sequence[MixersRecord]) -> Timed | NotExplained:
    if (call := largest_call(name, records, explains=lambda cell: cell.block is None)) is None:
        return NotExplained(name, "no cell of the mixer alone was measured")
    if call.on_cpu:
        return NotExplained(name, "on a CPU the operators of a mixer cannot be identified")
    categories = seconds_by_category((kernel.name, kernel.total_s) for kernel in call.cell.kernels)
    floor = floor_of(call.cell.demand, call.record.limits)
    return timed_call(call, categories, floor=floor, notes=kernels_note(call.cell.kernels))


def remarks(rows: Sequence[MixersRow], baseline: str | None, *, brief: bool = False) -> list[str]:  # noqa: ARG001
    return [*crossing_remarks(rows), *(() if brief else (*_mixer_shares(rows), *_slopes(rows), *_misfits(rows)))]


def crossing_remarks(rows: Sequence[MixersRow]) -> list[str]:
    by_call = _relative_to_softmax(rows, lambda row: row.latency_by_round)
    by_kernels = _relative_to_softmax(rows, lambda row: row.kernels_by_round)
    lines = []
    for series in length_series([row.cell for row in rows if row.cell and row.latency]):
        for variant in dict.fromkeys(row.variant for row in rows):
            calls, kernels = (
                [(key["seq_len"], of[variant, key]) for key in series.keys if (variant, key) in of]
                for of in (by_call, by_kernels)
            )
            differs = crossings(kernels) != crossings(calls)
            if text := crossing_text(plain_line(variant), calls):
                lines.append(f"{series.label}: {text}{kernels_text(kernels) if differs else ''}.")
    return lines


def _relative_to_softmax(
    rows: Sequence[MixersRow], seconds_of: Callable[[MixersRow], Mapping[Moment, float]]
) -> dict[tuple[str, CellKey], SpeedUp]:
    """Return time of the fastest softmax / time of the mixer, by mixer and cell. Holm's correction covers all cells."""
    best = best_softmaxes([row for row in rows if seconds_of(row)])
    mixers = [(row, row.cell) for row in rows if row.cell in best and not row.is_softmax]
    return paired_speed_ups({(row.variant, cell): (best[cell], row) for row, cell in mixers if cell}, seconds_of)


def best_softmaxes(rows: Sequence[MixersRow]) -> dict[CellKey, MixersRow]:
    # Of several rows of a cell, the dictionary keeps the last, which is the fastest.
    softmaxes = sorted((row for row in rows if row.is_softmax and row.pace), key=lambda row: row.speed)
    return {row.cell: row for row in softmaxes if row.cell}


def crossing_text(variant: str, speed_ups: SpeedUps) -> str | None:
    """Return a text on the length from which a mixer is faster than the best softmax; None for a single length."""
    if len(speed_ups) < 2:
        return None
    best = {size: plain_line(speed_up.reference) for size, speed_up in speed_ups}
    if spans := crossings(speed_ups):
        return "; ".join(
            f"{variant} is {span.verdict} than the best softmax from between {span.after:,} and {span.before:,} "
            f"positions on ({best[span.before]} at {span.before:,})"
            for span in spans
        )
    lengths = f"from {speed_ups[0][0]:,} to {speed_ups[-1][0]:,} positions"
    softmax = f"the best softmax ({' and '.join(dict.fromkeys(best.values()))})"
    ends = ", ".join(f"{speed_up.text} at {end:,}" for end, speed_up in (speed_ups[0], speed_ups[-1]))
    verdict = constant_verdict(speed_ups)
    if verdict is None:
        return f"{variant} relative to {softmax}: {ends}; no crossing is decided, {lengths}"
    return f"{variant} is {verdict} than {softmax} at all measured lengths, {lengths}: {ends}"


def kernels_text(speed_ups: SpeedUps) -> str:
    """Return `; its kernels alone are faster from between 4,096 and 8,192 on`; '' if undecided."""
    start = "; its kernels alone are"
    if spans := crossings(speed_ups):
        texts = (f"{span.verdict} from between {span.after:,} and {span.before:,} on" for span in spans)
        return f"{start} {', '.join(texts)}"
    verdict = constant_verdict(speed_ups)
    return f"{start} {verdict} at all measured lengths" if verdict else ""


def _mixer_shares(rows: Sequence[MixersRow]) -> Iterator[str]:
    for cell, best in sorted(best_softmaxes(rows).items()):
        if best.mixer_share is not None:
            yield (
                f"{cell.words}: {plain_line(best.variant)} has {percent(best.mixer_share)} of the FLOPs of the step, "
                "the most that another mixer can save."
            )


def _slopes(rows: Sequence[MixersRow]) -> Iterator[str]:
    """Yield sentences on memory in bytes per token: kept for the backward pass, or at the peak of the forward pass."""
    sizes: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    for row in rows:
        fact = "kept" if row.cell and row.cell.mode != "forward" else "peak"
        if row.cell and fact in row.facts:
            sizes[row.variant, fact][row.cell.seq_len * row.cell.batch_size] = round(row.facts[fact])
    for (variant, fact), measured in sizes.items():
        if line := slope(sorted(measured.items())):
            per_token_bytes, worst = line
            verb = "keeps for the backward pass" if fact == "kept" else "has at its forward peak"
            per_token = f"{per_token_bytes / 1024:.1f} KiB per token"
            yield f"{plain_line(variant)} {verb} {per_token}, at most {percent(worst)} off a straight line."


def slope(sizes: Sequence[tuple[int, int]]) -> tuple[float, float] | None:
    """Fit a line to (tokens, bytes) by least squares. Return its slope in bytes per token, and the largest relative
    distance of a point from the line; None for fewer than three different numbers of tokens."""
    import numpy

    # A line through two points has no distance from them.
    if len({tokens for tokens, _ in sizes}) < 3:
        return None
    tokens, measured = numpy.array(sizes, dtype=float).T
    per_token, fixed = numpy.polyfit(tokens, measured, 1)
    worst = float(numpy.max(numpy.abs(fixed + per_token * tokens - measured) / measured))
    return float(per_token), worst


def _misfits(rows: Sequence[MixersRow]) -> Iterator[str]:
    for row in rows:
        if cell := row.misfit:
            text = f"at {cell.seq_len:,} positions {plain_line(row.variant)} does not fit"
            if cell.least_bytes is not None and cell.free_bytes is not None:
                bound = " at least" if cell.least_bytes > cell.free_bytes else " for inputs, output and scores alone"
                text += f": it needs {gib(cell.least_bytes)}{bound}, and {gib(cell.free_bytes)} were free"
            yield f"{text}."


BITS_VERDICTS = {"faster": "fewer bits", "slower": "more bits"}


class Learned(NamedTuple):
    variant: str
    scores: tuple[TaskScore, ...]
    verdict: str | None  # Verdict on the bits per token relative to the baseline: "fewer bits".

    @property
    def accuracy(self) -> tuple[float, float, float]:
        return wilson(sum(score.right for score in self.scores), sum(score.asked for score in self.scores))

    @property
    def luck(self) -> str:
        """Suffix ", at chance" or ", below chance" if guessing is as accurate, or better; else ''."""
        _, low, high = self.accuracy
        chance = self.scores[0].chance
        return "" if chance < low else ", below chance" if high < chance else ", at chance"


def learned(rows: Sequence[MixersRow]) -> list[Learned]:
    """Return the scores of each variant in each task. `rows` are those of one cell, with one row per variant."""
    by_task = grouped(((score.task, score.size), (row.variant, score)) for row in rows for score in row.tasks)
    baseline = next((row.variant for row in rows if row.is_baseline), "")
    entries: list[Learned] = []
    for of_task in by_task.values():
        by_variant = grouped(of_task)
        bits = {name: {score.seed: score.bits for score in scores} for name, scores in by_variant.items()}
        texts: dict[str, str] = {}
        if reference := bits.pop(baseline, None):
            results = verdicts([paired_ratio(reference, by_seed) for by_seed in bits.values()])
            texts = {name: BITS_VERDICTS.get(verdict, verdict) for name, verdict in zip(bits, results, strict=True)}
            texts[baseline] = "baseline"
        entries += [Learned(name, tuple(scores), texts.get(name)) for name, scores in by_variant.items()]
    return entries


def _accuracies(entry: Learned) -> tuple[str, str, str]:
    """Return the texts for accuracy, accuracy by seed, and chance; dashes for the task bytes."""
    if entry.scores[0].task == "bytes":
        return MISSING, MISSING, MISSING
    share, low, high = (percent(value, places=1).removesuffix(" %") for value in entry.accuracy)
    by_seed = " ".join(f"{100 * score.right / score.asked:.0f}" for score in entry.scores)
    return f"{share} [{low}, {high}]", by_seed, f"{100 * entry.scores[0].chance:.1f}{entry.luck}"


def _bits(entry: Learned) -> str:
    bits = estimate([score.bits for score in entry.scores])
    if bits.low is None or bits.high is None:
        return decimal(bits.value)
    return f"{decimal(bits.value)} [{decimal(bits.low)}, {decimal(bits.high)}]"


COLUMNS: Sequence[Column[Learned]] = (
    Column("task", lambda entry: entry.scores[0].task, "left"),
    Column("size", lambda entry: str(entry.scores[0].size)),
    Column("variant", lambda entry: plain_line(entry.variant), "left"),
    Column("right %", lambda entry: _accuracies(entry)[0]),
    Column("by seed", lambda entry: _accuracies(entry)[1]),
    Column("chance %", lambda entry: _accuracies(entry)[2]),
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


def task_sheets(rows: Sequence[MixersRow]) -> list[Sheet]:
    return [Sheet("Tasks", COLUMNS, entries, (NOTE,))] if (entries := learned(rows)) else []
