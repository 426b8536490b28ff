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
    """One timed repeat."""

    latency_s: float
    tokens: int
    """Of the whole batch."""
    memory_bytes: int | None


@dataclass(frozen=True)
class LoggedCell:
    """One point of the grid."""

    prompt_tokens: int
    new_tokens: int
    batch_size: int
    runs: int
    """As many repeats as there should be; 0 where there is none."""
    samples: tuple[LoggedSample, ...]


@dataclass(frozen=True)
class LoggedRun:
    """One variant."""

    line: int
    """Where it begins, from 1."""
    evidence: Evidence | None
    """None where the log does not say which variant it is."""
    name: str | None
    """As the log has it, or made from the evidence."""
    model: str | None
    device: str | None
    cells: tuple[LoggedCell, ...]


def find_runs(lines: Sequence[str]) -> tuple[LoggedRun, ...]:
    """All runs of a log.

    Raises:
        ResultsError: The log contradicts itself, or lines are missing.
    """
    runs: list[LoggedRun] = []
    known: Evidence | None = None
    for before, events in _groups(_without_plain_text(find_events(lines), lines)):
        known = evidence_after(known, before)
        runs.append(_run(events, known))
    return tuple(runs)


def _without_plain_text(events: Sequence[Event], lines: Sequence[str]) -> list[Event]:
    """The events less every short line that is no heading."""
    return [
        event
        for event, following in zip(events, [*events[1:], None], strict=False)
        if event.kind != "label"
        or is_label(event, following, lines[event.line : following.line - 1] if following else ())
    ]


def _groups(events: Sequence[Event]) -> list[tuple[list[Event], list[Event]]]:
    """For each run the lines that stand before it and its own."""
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


def _run(events: Sequence[Event], known: Evidence | None) -> LoggedRun:
    first = events[0]
    own = evidence_of_start(first)
    # A model whose name says gptq needs no line that says so.
    evidence = own if own and (known is None or known.is_by_silence or first.kind == "variant") else known
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
    said = heading.groups
    numbers = [int(event.groups["number"]) for event in samples]
    for event, number, earlier in zip(samples, numbers, [0, *numbers], strict=False):
        if number <= earlier:
            raise ResultsError(f"line {event.line}: run {number} after run {earlier}; the heading between is missing")
    return LoggedCell(
        prompt_tokens=int(said.get("prompt") or said["prompt_of"]),
        new_tokens=int(said.get("new") or said["new_of"]),
        batch_size=int(said.get("batch", "1")),
        runs=max((int(event.groups["runs"]) for event in samples), default=0),
        samples=tuple(map(_sample, samples)),
    )


def _sample(event: Event) -> LoggedSample:
    said = event.groups
    latency_s, tokens, rate = float(said["latency_s"]), int(said["tokens"]), float(said["rate"])
    # Both are printed rounded.
    if not latency_s or abs(rate - tokens / latency_s) > 0.01 + 0.01 * rate:
        raise ResultsError(
            f"line {event.line}: {tokens} tokens in {latency_s} s are not {rate} a second; take the line out"
        )
    size = float(said.get("memory", "0"))
    return LoggedSample(latency_s, tokens, round(size * _UNITS[said["unit"].upper()]) if size else None)
