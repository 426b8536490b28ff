"""From the lines of a log to its runs: one variant each, with its cells and their timed repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarker.core.errors import ResultsError
from benchmarker.logs.events import Event, find_events
from benchmarker.logs.variant import Evidence, evidence_after, evidence_of_start, is_label

_UNITS = {"G": 2**30, "M": 2**20}


@dataclass(frozen=True)
class LoggedSample:
    """One timed repeat, as a line of a log tells it."""

    latency_s: float
    tokens: int
    """New tokens of all sequences of the batch."""
    memory_bytes: int | None
    """Memory at the end of the repeat; None where the line has none."""


@dataclass(frozen=True)
class LoggedCell:
    """One point of the grid, with its timed repeats."""

    prompt_tokens: int
    new_tokens: int
    batch_size: int
    runs: int
    """Repeats that there should be, as their lines say: `run 1/5`; 0 where there are no such lines."""
    samples: tuple[LoggedSample, ...]


@dataclass(frozen=True)
class LoggedRun:
    """One run of a variant."""

    line: int
    """Number of its first line, from 1."""
    evidence: Evidence | None
    """None where the log does not say which variant it is."""
    name: str | None
    """The variant's name in the log, or the one that the evidence gives."""
    model: str | None
    device: str | None
    cells: tuple[LoggedCell, ...]


def find_runs(lines: Sequence[str]) -> tuple[LoggedRun, ...]:
    """All runs of a log.

    Raises:
        ResultsError: The log contradicts itself, or lines are missing.
    """
    runs: list[LoggedRun] = []
    evidence: Evidence | None = None
    for before, events in _groups(_without_plain_text(find_events(lines), lines)):
        evidence = evidence_after(evidence, before)
        runs.append(_run(events, evidence))
    return tuple(runs)


def _without_plain_text(events: Sequence[Event], lines: Sequence[str]) -> list[Event]:
    """The events without the short lines that are no heading."""
    return [
        event
        for event, following in zip(events, [*events[1:], None], strict=False)
        if event.kind != "label"
        or is_label(event, following, lines[event.line : following.line - 1] if following else ())
    ]


def _groups(events: Sequence[Event]) -> list[tuple[list[Event], list[Event]]]:
    """For each run, the events that stand before it, and those of the run."""
    groups: list[tuple[list[Event], list[Event]]] = []
    before: list[Event] = []
    for event in events:
        is_between = bool(before) or not groups
        if event.kind in ("start", "variant") or (event.kind == "cell" and is_between):
            groups.append((before, [event]))
            before = []
        elif event.kind in ("cell", "sample"):
            if is_between:
                raise ResultsError(
                    f"line {event.line}: a timed run that no heading is over, such as `prompt of 26, 50 new tokens`"
                )
            groups[-1][1].append(event)
        else:
            before.append(event)
    return groups


def _run(events: Sequence[Event], earlier: Evidence | None) -> LoggedRun:
    """The run of these events, whose variant is named by its first line or by the evidence above it."""
    first = events[0]
    evidence, in_first_line = earlier, evidence_of_start(first)
    # A model whose name says gptq needs no line that says so.
    if in_first_line and (earlier is None or earlier.is_by_silence or first.kind == "variant"):
        evidence = in_first_line
    return LoggedRun(
        line=first.line,
        evidence=evidence,
        name=first.groups.get("name") or (evidence.name if evidence else None),
        model=first.groups.get("model"),
        device=first.groups.get("device"),
        cells=_cells(events),
    )


def _cells(events: Sequence[Event]) -> tuple[LoggedCell, ...]:
    cells: list[tuple[Event, list[Event]]] = []
    for event in events:
        if event.kind == "cell":
            cells.append((event, []))
        elif event.kind == "sample":
            if not cells:
                raise ResultsError(
                    f"line {event.line}: a timed run that no heading is over, such as `prompt of 26, 50 new tokens`"
                )
            cells[-1][1].append(event)
    return tuple(_cell(heading, samples) for heading, samples in cells)


def _cell(heading: Event, samples: Sequence[Event]) -> LoggedCell:
    groups = heading.groups
    numbers = [int(event.groups["number"]) for event in samples]
    for event, number, earlier in zip(samples, numbers, [0, *numbers], strict=False):
        if number <= earlier:
            raise ResultsError(f"line {event.line}: run {number} after run {earlier}; the heading between is missing")
    return LoggedCell(
        prompt_tokens=int(groups.get("prompt") or groups["prompt_of"]),
        new_tokens=int(groups.get("new") or groups["new_of"]),
        batch_size=int(groups.get("batch", "1")),
        runs=max((int(event.groups["runs"]) for event in samples), default=0),
        samples=tuple(map(_sample, samples)),
    )


def _sample(event: Event) -> LoggedSample:
    groups = event.groups
    latency_s, tokens, rate = float(groups["latency_s"]), int(groups["tokens"]), float(groups["rate"])
    # Both are printed rounded.
    if not latency_s or abs(rate - tokens / latency_s) > 0.01 + 0.01 * rate:
        raise ResultsError(
            f"line {event.line}: {tokens} tokens in {latency_s} s are not {rate} a second; take the line out"
        )
    size = float(groups.get("memory", "0"))
    return LoggedSample(latency_s, tokens, round(size * _UNITS[groups["unit"].upper()]) if size else None)
