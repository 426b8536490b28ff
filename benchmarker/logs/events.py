"""The lines of a log that mean something to an import, in either language of their labels.

The reference format is that of the script which this program grew from: Chinese labels, memory in `GB` that are GiB. In
English it is what `benchmarker run` itself prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarker.core.errors import ResultsError

Kind = Literal["label", "load", "quantize", "fail", "end", "start", "variant", "cell", "sample"]
"""`label` is a heading over a run, `end` the end of a quoted block; `variant` is how `benchmarker run` begins."""

_SAMPLE_BEGINS = re.compile(r"(?:运行|\brun)\s*\d+/\d+\s*[:：]", re.IGNORECASE)
_MEANINGS: dict[Kind, re.Pattern[str]] = {
    "sample": re.compile(
        r"(?:运行|\brun)\s*(?P<number>\d{1,9})/(?P<runs>\d{1,9})\s*[:：]\s*"
        r"(?:延迟|latency)\s*[=:]?\s*(?P<latency_s>\d{1,9}(?:\.\d{1,9})?)\s*s\s*[,，]\s*"
        r"(?:生成|generated)?\s*(?P<tokens>\d{1,9})\s*tokens?\s*[,，]\s*"
        r"(?:吞吐量|throughput)?\s*[=:]?\s*(?P<rate>\d{1,9}(?:\.\d{1,9})?)\s*(?:t|tok|tokens)/s"
        r"(?:\s*[,，]\s*(?:显存|memory)\s*[=:]?\s*(?P<memory>\d{1,9}(?:\.\d{1,9})?)\s*(?P<unit>[GM])i?B)?\s*$",
        re.IGNORECASE,
    ),
    "cell": re.compile(
        r"(?:(?<!-)-{2,9}(?!-).*(?:输入长度|prompt|input)\D*(?P<prompt>\d{1,9})\D+(?P<new>\d{1,9})\s*-{2,9}"
        r"|^\s*prompt of (?P<prompt_of>\d{1,9}), (?P<new_of>\d{1,9}) new tokens(?:, batch of (?P<batch>\d{1,9}))?)\s*$",
        re.IGNORECASE,
    ),
    "start": re.compile(
        r"={2,}\s*(?:开始测试|start(?:ing)?\s+(?:the\s+)?(?:test|benchmark)\w*)\s*[:：]\s*(?P<model>\S.*?)\s*={2,}",
        re.IGNORECASE,
    ),
    "variant": re.compile(
        r"^(?P<name>(?P<quant>[a-z]+\d*(?:-dynamic)?)(?: [^:]*)?): (?P<model>\S+) on (?P<device>\S.*?)\s*$"
    ),
    "quantize": re.compile(
        r"\bApplying (?P<quant>\w+) quantization|\bModel quantized to (?P<quantized_to>\w+)", re.IGNORECASE
    ),
    "load": re.compile(r"\[load_model_and_tokenizer\] Loading model"),
    "fail": re.compile(r"Traceback \(most recent call last\):"),
    "label": re.compile(r"^[#=*>\s]*(?P<label>[A-Za-z][\w .+-]{0,39}?)\s*[:：=*]*\s*$"),
}
_LONGEST = 300
"""Letters of a line: no line that matters is longer, and on one of a megabyte the patterns would take hours."""


@dataclass(frozen=True)
class Event:
    """A line of a log that means something to an import."""

    kind: Kind
    line: int
    """Number of the line, from 1."""
    text: str
    groups: dict[str, str]
    """Numbers and names of the line, as the groups of the kind's pattern; absent ones are left out."""


def find_events(lines: Sequence[str]) -> list[Event]:
    """The lines of a log that mean something, in their order.

    Raises:
        ResultsError: The line of a timed run is not whole.
    """
    return list(_without_closed_blocks(event for index in range(len(lines)) if (event := _event(lines, index))))


def _event(lines: Sequence[str], index: int) -> Event | None:
    """What the line at that index means; None for one without a meaning."""
    text = lines[index]
    if len(text) > _LONGEST:
        return None
    if text.strip().startswith("```"):
        return Event("end", index + 1, text.strip(), {})
    for kind, pattern in _MEANINGS.items():
        match = pattern.search(text)
        if match:
            groups = {name: value for name, value in match.groupdict().items() if value}
            return Event(kind, index + 1, text.strip(), groups)
    if _SAMPLE_BEGINS.search(text):
        raise ResultsError(
            f"line {index + 1}: not the whole line of a timed run; get the whole log, or take the line out: "
            f"{text.strip()[:80]!r}"
        )
    return None


def _without_closed_blocks(events: Iterator[Event]) -> Iterator[Event]:
    """The events without the marks that open a quoted block: what is in it belongs to the run above it."""
    is_open = False
    for event in events:
        if event.kind == "end":
            is_open = not is_open
            if is_open:
                continue
        yield event
