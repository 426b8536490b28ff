"""Captions that explain a table, and the header above it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from benchmarker.comparison.rows import Results, Row, listed
from benchmarker.core.formatting import percent, plural
from benchmarker.core.stats import CONFIDENCE, MIN_ROUNDS, POWER, SAME_WITHIN
from benchmarker.core.tables import code, plain_line
from benchmarker.schema.record import RunRecord
from benchmarker.schema.registry import workload_of


def caption(results: Results) -> str:
    """Return one paragraph below the tables; empty if there is no number to explain."""
    rows = [row for row in results.rows if row.status == "ok"]
    if not rows:
        return ""
    return " ".join([*_spread(rows), *_speed_up(rows), *_verdicts(rows), *_peak(results), *_further(rows)])


def _further(rows: Sequence[Row]) -> list[str]:
    return list(filter(None, dict.fromkeys(row.caption for row in rows)))


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
    compared = [row.speed_up for row in rows if row.speed_up]
    sentences = reference_note(rows)
    if sentences:
        metrics = listed(row.ranking.heading for row in rows if row.speed_up)
        sentences = [f"{sentences[0].removesuffix('.')}, in {metrics}."]
    untested = [speed_up.ratio.rounds for speed_up in compared if speed_up.verdict == "not tested"]
    if untested:
        counted = plural(min(untested), "round", "rounds")
        sentences.append(
            f"Not tested: {counted} cannot separate a difference from chance; {MIN_ROUNDS} rounds or more can "
            f"({code('benchmarker sweep')})."
        )
    return sentences


def reference_note(rows: Sequence[Row]) -> list[str]:
    """Return to which variants the speed-ups of a table are relative."""

    references = list(dict.fromkeys(row.speed_up.reference for row in rows if row.speed_up))
    if not references:
        return []
    if len(references) == 1:
        return [f"Speed-up is relative to {plain_line(*references)}."]
    workload = workload_of(rows[0].workload)
    return [f"Speed-up is relative to the {workload.baseline_noun} in the same {workload.surroundings_noun}."]


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
        return ["Peak is the growth of the process's resident memory since before the model was loaded."]
    where = " on a GPU, and the growth of the process's resident memory on CPU" if "cpu" in kinds else ""
    return [f"Peak is the live tensors as torch's allocator counts them{where}."]


RecordT = TypeVar("RecordT", bound=RunRecord)
PACKAGES = ("torch", "transformers", "torchao", "bitsandbytes", "optimum", "gptqmodel")
"""Packages named in the header."""


def plain_header(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return the lines of subject, device, versions and procedure."""
    return f"workload: {plain_line(records[0].workload)}", *machine_lines(records)


def page_title(results: Results) -> str:
    """Return the title of a page: `attention on NVIDIA H100 80GB HBM3`."""
    subjects = each(results.records, lambda record: record.subject_name)
    return f"{subjects} on {each(results.records, lambda record: record.environment.device.name)}"


def machine_lines(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return the lines of device, versions and procedure."""
    devices = each(records, lambda record: record.environment.device.name)
    programs = each(records, lambda record: f"benchmarker {record.benchmarker}")
    drivers = each(records, _platform)
    return (
        f"device: {devices}{in_brackets(drivers)}",
        f"versions: {'; '.join(filter(None, (programs, _packages(records))))}",
        f"measured: {_procedure(records)}",
    )


def each(records: Sequence[RecordT], value_of: Callable[[RecordT], str]) -> str:
    """Return the distinct values of the records, separated by commas."""
    return ", ".join(plain_line(value) for value in dict.fromkeys(map(value_of, records)) if value)


def in_brackets(*parts: str) -> str:
    """Return ` (first, second)` without empty parts."""
    words = ", ".join(filter(None, parts))
    return f" ({words})" if words else ""


def _platform(record: RunRecord) -> str:
    device = record.environment.device
    if device.kind == "cpu":
        return plural(record.environment.threads, "thread", "threads") if record.environment.threads else ""
    runtime = f"{'ROCm' if device.kind == 'rocm' else 'CUDA'} {device.runtime}" if device.runtime else ""
    return ", ".join(filter(None, (runtime, f"driver {device.driver}" if device.driver else "")))


def _packages(records: Sequence[RunRecord]) -> str:
    versions: dict[str, dict[str, None]] = {}
    for record in records:
        for name in PACKAGES:
            if name in record.environment.packages:
                versions.setdefault(name, {})[record.environment.packages[name]] = None
    return ", ".join(f"{plain_line(name)} {plain_line(' or '.join(numbers))}" for name, numbers in versions.items())


def _procedure(records: Sequence[RunRecord]) -> str:
    processes: dict[str, int] = {}
    for record in records:
        processes[record.variant.name] = processes.get(record.variant.name, 0) + 1
    runs = each(records, lambda record: str(record.procedure.get("runs", "")))
    warmup = each(records, lambda record: str(record.procedure.get("warmup", "")))
    counts = sorted(set(processes.values()))
    many = f"{counts[0]} to {counts[-1]} processes" if len(counts) > 1 else plural(counts[0], "process", "processes")
    repeats = f", {runs} timed runs a cell after at least {warmup} warm-ups" if runs and warmup else ""
    days = sorted({record.started_at[:10] for record in records})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    forks = (
        " (one process per round imports the libraries; each variant is a fork of it)"
        if any(record.forked for record in records)
        else ""
    )
    return f"{many} a variant{forks}{repeats}, {plain_line(when)}"
