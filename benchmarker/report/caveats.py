"""Sentences around a table: the header above it, and the caption and the caveats below it."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, TypeVar

from benchmarker.comparison.rows import CellKey, Results, Row, cell_words, grouped, keys_of, listed
from benchmarker.core.formatting import approximate_duration, percent, plural, range_text
from benchmarker.core.stats import CONFIDENCE, MIN_ROUNDS, POWER, SAME_WITHIN
from benchmarker.core.tables import code, plain_line
from benchmarker.schema.record import DISTURBING, Flag, RunRecord, median_latency_s, status_words
from benchmarker.schema.registry import workload_of

FLAGS: dict[Flag, str] = {
    "unstable_warmup": "the last three warm-ups differed by more than 2 %, or there were fewer than three",
    "unstable_ttft": "the TTFT of the last three warm-ups differed by more than 2 %",
    "late_warmup": "the first timed run was far slower than the others",
    "nondeterministic_tokens": "repeats of the same prompt gave different tokens",
    "power_limited": "the power limit held the clocks down",
    "throttling_unknown": "the driver did not report the clocks' limits",
    "shared_device": "other processes used the device during the measurement",
    "step_differs": "predictions of the timed step differ from the variant's forward pass by more than rounding",
    "disturbed": "other programs used the same cores during the measurement: its times may be too long",
    "shared_host": "other workers of the same host measured at the same time; host-bound rows, such as eager ones, "
    "may be slower than alone",
    "imported": "read from a log, which contains less than a record",
}
PACKAGES = ("torch", "transformers", "torchao", "bitsandbytes", "optimum", "gptqmodel")  # Packages named in the header.
REASON_LENGTH = 300
UUID_LENGTH = 12
COMMIT_LENGTH = 7
CLOCKS_WITHIN = 1.03  # Ratio of the highest to the lowest clock above which the clocks of the variants are printed.
SMALLEST_CHANGE = 0.01
LARGEST_P = 0.01
RecordT = TypeVar("RecordT", bound=RunRecord)


def machine_lines(records: Sequence[RunRecord]) -> tuple[str, ...]:
    numbers = {name: dict.fromkeys(record.environment.packages.get(name) for record in records) for name in PACKAGES}
    versions = {name: " or ".join(filter(None, distinct)) for name, distinct in numbers.items()}
    packages = ", ".join(f"{name} {plain_line(text)}" for name, text in versions.items() if text)
    programs = each(records, lambda record: f"benchmarker {record.benchmarker}")
    devices = each(records, lambda record: record.environment.device.name)
    return (
        f"device: {devices}{in_brackets(each(records, _platform))}",
        f"versions: {'; '.join(filter(None, (programs, packages)))}",
        f"measured: {_procedure(records)}",
    )


def each(records: Sequence[RecordT], value_of: Callable[[RecordT], str]) -> str:
    """Return the distinct values of `value_of(record)`, separated by commas."""
    return names(value for value in dict.fromkeys(map(value_of, records)) if value)


def in_brackets(*parts: str) -> str:
    """Return ` (first, second)` without empty parts; "" if all parts are empty."""
    words = ", ".join(filter(None, parts))
    return f" ({words})" if words else ""


def names(variants: Iterable[str]) -> str:
    return ", ".join(map(plain_line, variants))


def _platform(record: RunRecord) -> str:
    device = record.environment.device
    if device.kind == "cpu":
        return plural(record.environment.threads, "thread", "threads") if record.environment.threads else ""
    runtime = f"{'ROCm' if device.kind == 'rocm' else 'CUDA'} {device.runtime}" if device.runtime else ""
    return ", ".join(filter(None, (runtime, f"driver {device.driver}" if device.driver else "")))


def _procedure(records: Sequence[RunRecord]) -> str:
    rounds: dict[tuple[str, CellKey], set[object]] = defaultdict(set)
    for record in records:
        for key, cell in zip(keys_of(record), record.cells, strict=True):
            if cell.status == "ok":
                # The disturbed cells of a round were measured again in another process.
                rounds[record.variant.name, key].add(record.moment if record.sweep else record.run_id)
    days = sorted({record.started_at[:10] for record in records})
    when = plain_line(range_text(days))
    if not rounds:
        return f"0 valid cells, {when}"
    least, most = min(map(len, rounds.values())), max(map(len, rounds.values()))
    many = plural(least, "process", "processes") + " a variant"
    many = many if least == most else f"{least} to {most} processes a variant and cell"
    fork = "one process per round imports the libraries; each variant is a fork of it"
    forks = in_brackets(fork if any(record.forked for record in records) else "")
    runs = each(records, lambda record: str(record.procedure.get("runs", "")))
    warmup = each(records, lambda record: str(record.procedure.get("warmup", "")))
    timed, warmed = ("run" if runs == "1" else "runs", "warm-up" if warmup == "1" else "warm-ups")
    repeats = f", {runs} timed {timed} a cell after at least {warmup} {warmed}" if runs and warmup else ""
    return f"{many}{forks}{repeats}, {when}"


def caption(results: Results) -> str:
    """Return the paragraph that explains the numbers of the tables; empty if no row has numbers."""
    rows = [row for row in results.rows if row.status == "ok"]
    if not rows:
        return ""
    of_rows = filter(None, dict.fromkeys(row.caption for row in rows))
    return " ".join([*_spread(rows), *_speed_up(rows), *_verdicts(rows), *_peak(results), *of_rows])


def _spread(rows: Sequence[Row]) -> list[str]:
    sentences = []
    if any(row.rate and row.rate.low is not None for row in rows):
        sentences.append(
            f"[low, high] is the {percent(CONFIDENCE, places=0)} interval over the rounds, "
            "one median from a fresh process each."
        )
    untested = [row for row in rows if row.rounds < MIN_ROUNDS and row.rate and row.rate.deviation is not None]
    if any(row.processes == 1 for row in untested):
        sentences.append("Values are medians over the timed runs of one process, ± their sample standard deviation.")
    if any(row.processes > 1 for row in untested):
        sentences.append(
            "Of several processes in fewer than three rounds, a value is the geometric mean of their medians, ± the "
            "sample standard deviation of all timed runs."
        )
    return sentences


def _speed_up(rows: Sequence[Row]) -> list[str]:
    metrics = [row.ranking.heading for row in rows if row.speed_up]
    sentences = [f"{note.removesuffix('.')}, in {listed(metrics)}." for note in reference_note(rows)]
    ratios = (ratio for row in rows for ratio in (row.speed_up, row.against_named, row.call) if ratio)
    if untested := [ratio.ratio.rounds for ratio in ratios if ratio.verdict == "not tested"]:
        sentences.append(
            f"A ratio without an interval is not tested: {plural(min(untested), 'round', 'rounds')} cannot separate a "
            f"difference from chance; {MIN_ROUNDS} rounds or more can ({code('benchmarker sweep')})."
        )
    return sentences + round_notes(rows)


def reference_note(rows: Sequence[Row]) -> list[str]:
    """Return `["Speed-up is relative to fp16."]`; an empty list if no row has a speed-up."""
    compared = dict.fromkeys(row.sweep for row in rows if row.speed_up)
    sweeps = grouped((_reference_words([row for row in rows if row.sweep == sweep]), sweep) for sweep in compared)
    if len(sweeps) > 1:
        return [f"Speed-up is relative to {listed(f'{words} in {listed(of)}' for words, of in sweeps.items())}."]
    within = " of the same sweep" if any(row.sweep for row in rows) else ""
    return [f"Speed-up is relative to {words}{within}." for words in sweeps]


def round_notes(rows: Sequence[Row]) -> list[str]:
    """Return a note on the ratios that compare fewer rounds than the rates of their variants, so that they differ from
    the ratio of these rates."""
    alike: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        for gain in dict.fromkeys(gain for gain in (row.speed_up, row.against_named, row.call) if gain):
            if moments := gain.ratio.common:
                numbers = listed(str(number + 1) for _, number in moments)
                is_one_sweep = len({sweep for sweep, _ in moments}) == 1
                words = f"round{'s' * (len(moments) > 1)} {numbers}" if is_one_sweep else f"{len(moments)} rounds"
                alike[gain.reference, words].append(row)
    return [
        f"{listed(row.variant for row in members)} relative to {plain_line(reference)}"
        f"{_where(members) if len({row.cell for row in rows}) > 1 else ''}: ratios of {words}, which both have."
        for (reference, words), members in alike.items()
    ]


def _reference_words(rows: Sequence[Row]) -> str:
    """Return the name of the only reference of these rows, or the property that a row shares with its reference."""
    references = {row.speed_up.reference for row in rows if row.speed_up}
    references |= {row.name_in_sweep for row in rows if row.is_reference and row.pace}
    if len(references) > 1:
        workload = workload_of(rows[0].workload)
        return f"the {workload.baseline_noun} in the same {workload.surroundings_noun}"
    return plain_line(references.pop())


def _verdicts(rows: Sequence[Row]) -> list[str]:
    ratios = [row.speed_up.ratio for row in rows if row.speed_up and row.speed_up.ratio.p is not None]
    detectable = [smallest for ratio in ratios if (smallest := ratio.detectable(len(ratios))) is not None]
    if not detectable:
        return []
    least, most = (percent(ratio - 1, places=1) for ratio in (min(detectable), max(detectable)))
    band = percent(SAME_WITHIN, places=0)
    difference = least if least == most else f"{least} in the steadiest row and {most} in the least steady"
    return [
        f"Faster or slower: a ratio of 1 is excluded, after Holm's correction over the table, and it is more than "
        f"{band} off; same: the whole interval is within ±{band}; inconclusive: more rounds would decide.",
        f"A true difference of {difference} would have been detected at least {percent(POWER, places=0)} of the time.",
    ]


def _peak(results: Results) -> list[str]:
    if all(row.peak_memory_bytes is None for row in results.rows):
        return []
    kinds = {record.environment.device.kind for record in results.records}
    if kinds == {"cpu"}:
        return ["Peak is the growth of the process's resident memory since before model or inputs were loaded."]
    where = " on a GPU, and the growth of the process's resident memory on CPU" if "cpu" in kinds else ""
    return [f"Peak is the live tensors as torch's allocator counts them{where}."]


def plain_caveats(records: Sequence[RunRecord], rows: Sequence[Row]) -> tuple[str, ...]:
    return *disturbed(rows), *origins(records), *failed(rows), *unfinished(records), *conditions(records, rows)


def disturbed(rows: Sequence[Row]) -> list[str]:
    """Return lines on the rows that other programs may have slowed down, and on the rows with invalid times."""
    return _flag_lines(rows, DISTURBING) + _failed_rows([row for row in rows if row.status == "invalid"])


def _flag_lines(rows: Sequence[Row], flags: Collection[Flag]) -> list[str]:
    cells: dict[Flag, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for flag in filter(flags.__contains__, row.flags):
            cells[flag][row.variant] += 1
    lines = []
    for flag, counts in cells.items():
        parts = (f"{plain_line(name)} in {plural(count, 'cell', 'cells')}" for name, count in counts.items())
        lines.append(f"{plain_line(flag)}: {FLAGS[flag]} ({', '.join(parts)}).")
    return lines


def origins(records: Sequence[RunRecord]) -> list[str]:
    boards = variants_by(records, lambda record: record.environment.device.uuid)
    commits = variants_by(records, lambda record: record.environment.commit)
    every = {record.variant.name for record in records}

    def some(members: Collection[str]) -> str:
        return names(members) if len(every) == 1 or set(members) != every else "all variants"

    lines = []
    for noun, variants, letters in (
        ("boards, which may differ in speed", boards, UUID_LENGTH),
        ("versions of benchmarker", commits, COMMIT_LENGTH),
    ):
        if len(variants) > 1:
            parts = (f"{shorten(identity, letters)} ran {some(members)}" for identity, members in variants.items())
            lines.append(f"{len(variants)} {noun}: {'; '.join(parts)}.")
    sweeps = variants_by(records, lambda record: record.sweep or "single runs")
    counts = Counter(name for members in sweeps.values() for name in members)
    if merged := [name for name, count in counts.items() if count > 1]:
        of_merged = sorted(sweep for sweep, members in sweeps.items() if not set(merged).isdisjoint(members))
        lines.append(f"{some(merged)}: rows merge {len(of_merged)} sweeps: {names(of_merged)}.")
    return lines


def shorten(identity: str, letters: int) -> str:
    name, plus, changes = plain_line(identity).partition("+")
    return f"{name[:letters]}{plus}{changes}"


def variants_by(records: Sequence[RecordT], value_of: Callable[[RecordT], str | None]) -> dict[str, list[str]]:
    """Return the names of the variants by `value_of(record)`. Records for which this is None are skipped."""
    return grouped(dict.fromkeys((value, record.variant.name) for record in records if (value := value_of(record))))


def failed(rows: Sequence[Row]) -> list[str]:
    """Return a line for each reason that rows failed for, then lines on failed rounds. Invalid rows are left out."""
    return _failed_rows([row for row in rows if row.status not in ("ok", "invalid")]) + _failed_rounds(rows)


def _failed_rows(rows: Sequence[Row]) -> list[str]:
    # A reason of several variants, such as an unreachable hub, is printed once, even if numbers in its text differ.
    alike = grouped((re.sub(r"\d+", "#", _why(row.status, row.reason or "")), row) for row in rows)
    lines = []
    for failed_alike in alike.values():
        by_variant = grouped((row.variant, row) for row in failed_alike).values()
        for where, members in grouped((_where(of_one), row) for of_one in by_variant for row in of_one).items():
            variants = names(dict.fromkeys(row.variant for row in members))
            first, *others = dict.fromkeys(_why(row.status, row.reason or "") for row in members)
            lines.append(f"{variants}{where}: {first}{f' (the first of {len(others) + 1})' if others else ''}")
    return lines


def _failed_rounds(rows: Sequence[Row]) -> list[str]:
    alike = grouped(
        ((failure.is_repeated, re.sub(r"\d+", "#", f"{failure.status} {failure.reason}")), (row, failure))
        for row in rows
        for failure in row.failures
    )
    lines = []
    for (is_repeated, _), members in alike.items():
        parts = []
        for variant, failures in grouped((row.variant, (row, failure)) for row, failure in members).items():
            rounds = sorted({failure.round + 1 for _, failure in failures})
            where = _where([row for row, _ in failures])
            parts.append(f"{plain_line(variant)} round{'s' * (len(rounds) > 1)} {listed(map(str, rounds))}{where}")
        first, intro = members[0][1], "; the first" if len(members) > 1 else ""
        what = f"{'measured again' if is_repeated else 'left out'}: {'; '.join(parts)}{intro}"
        lines.append(f"{what}: {_why(first.status, first.reason or '')}")
    return lines


def _why(status: str, reason: str) -> str:
    words = status_words(status)
    return f"{words}: {plain_line(reason, longest=REASON_LENGTH)}" if reason else f"{words}."


def _where(rows: Sequence[Row]) -> str:
    cells = [*dict.fromkeys(row.cell for row in rows if row.cell)]
    if not cells:
        return ""
    return f" at {cell_words(cells[0])}" if len(cells) == 1 else f" in {len(cells)} cells"


def unfinished(records: Sequence[RunRecord]) -> list[str]:
    words = {"running": "has not finished, or its process died", "interrupted": "was interrupted"}
    has_rounds = any(run.round for run in records)
    return [
        f"{plain_line(run.variant.name)}{f', round {run.round + 1}' if has_rounds else ''}: the run "
        f"{words[run.status]}: {'no cell was finished' if run.last_good is None else 'the cells it finished are used'}."
        for run in records
        if run.status in words and not run.is_disturbed
    ]


def conditions(records: Sequence[RunRecord], rows: Sequence[Row]) -> list[str]:
    lines = []
    clocks: dict[CellKey, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row.cell and row.clock_mhz:
            clocks[row.cell][row.variant] = row.clock_mhz
    for cell, of_variants in clocks.items():
        if max(of_variants.values()) > CLOCKS_WITHIN * min(of_variants.values()):
            parts = (f"{plain_line(name)} {clock:.0f} MHz" for name, clock in of_variants.items())
            lines.append(f"clocks differ at {cell_words(cell)}: {', '.join(parts)}.")
    if drift := find_drift(records):
        lines.append(
            f"drift: from the first cell to the last, {approximate_duration(drift.span_s)}, everything became "
            f"{percent(abs(drift.change), places=1)} {'slower' if drift.change > 0 else 'faster'} (p = {drift.p:.1g}); "
            "rounds in turns share that among the variants."
        )
    lines += _flag_lines(rows, FLAGS.keys() - DISTURBING)
    reasons = variants_by(records, lambda record: record.no_energy.reason if record.no_energy else None)
    for reason, variants in reasons.items():
        lines.append(f"{names(variants)}: no energy: {plain_line(reason, longest=REASON_LENGTH)}.")
    return lines


class Drift(NamedTuple):
    """Trend of the latency over the whole measurement, a common slope of all variants."""

    change: float  # Relative change of the latency over the whole time: 0.02 is 2 % slower at the end.
    span_s: float
    p: float  # Two-sided p value of the hypothesis that there is no trend.


def find_drift(records: Sequence[RunRecord]) -> Drift | None:
    """Return the trend; None if it is at most 1 % over the whole time or not significant (p < 0.01).

    The model is a common slope of the logarithm of the median latency over time, with an intercept for each variant and
    cell (analysis of covariance): slope = sum(t y) / sum(t t), with t and y relative to their means in the cell.
    """
    from scipy.special import stdtr

    groups: dict[tuple[str, CellKey], list[tuple[float, float]]] = defaultdict(list)
    for record in records:
        for key, cell in zip(keys_of(record), record.cells, strict=True):
            if cell.status == "ok" and cell.timed_at and cell.samples:
                groups[record.variant.name, key].append((cell.timed_at[0], math.log(median_latency_s(cell))))
    moments = [moment for points in groups.values() for moment, _ in points]
    freedom = len(moments) - len(groups) - 1
    if freedom < 1:
        return None
    deviations = []
    for points in groups.values():
        middle, level = (statistics.fmean(values) for values in zip(*points, strict=True))
        deviations += [(moment - middle, log - level) for moment, log in points]
    spread = sum(moment * moment for moment, _ in deviations)
    if spread == 0:
        return None
    slope = sum(moment * log for moment, log in deviations) / spread
    rest = sum((log - slope * moment) ** 2 for moment, log in deviations)
    error = math.sqrt(rest / freedom / spread)
    p = float(2 * stdtr(freedom, -abs(slope) / error)) if error else 0.0
    span_s = max(moments) - min(moments)
    change = math.expm1(slope * span_s)
    return Drift(change, span_s, p) if abs(change) > SMALLEST_CHANGE and p < LARGEST_P else None
