"""Runs of a log: the variant of each run, its cells and their timed repeats.

The reference format is that of the script from which this program grew: Chinese labels, and memory in `GB` that are
GiB. Its English form is the output of `benchmarker run`. A line that names a quantization applies to all runs up to the
next such line. A model that is loaded without such a line is unquantized. After a crash or the end of a quoted block,
the variant is unknown.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from benchmarker.core.errors import ResultsError
from benchmarker.schema.record_io import read_bytes

# `>` in Windows PowerShell writes UTF-16.
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_log(path: Path) -> str:
    """Read the text of a log, in UTF-8, or in UTF-16 with a byte-order mark. Raises ResultsError."""
    raw = read_bytes(path)
    if not raw.strip():
        raise ResultsError(f"{path}: the file is empty; give the log of a run")
    encoding = "utf-16" if raw.startswith(_UTF_16) else "utf-8"
    try:
        text = raw.removeprefix(codecs.BOM_UTF8).decode(encoding)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ResultsError(
            f"{path}: line {line}: not {encoding.upper()} text; convert it, as with `iconv -f GB18030 -t UTF-8`"
        ) from error
    if "\0" in text:
        raise ResultsError(f"{path}: not a text file; give the log of a run, as UTF-8 text")
    return text


Kind = Literal["label", "load", "quantize", "fail", "end", "start", "variant", "cell", "sample"]
"""`label` is a heading above a run, `end` closes a quoted block, `variant` is the first line of `benchmarker run`."""

_SAMPLE_BEGINS = re.compile(r"(?:运行|\brun)\s*\d+/\d+\s*[:：]", re.IGNORECASE)
_PATTERNS: dict[Kind, re.Pattern[str]] = {
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
        r"|^\s*prompt of (?P<prompt_of>\d{1,9}), (?P<new_of>\d{1,9}) new tokens?"
        r"(?:, batch of (?P<batch>\d{1,9})(?P<distinct>, distinct prompts)?)?)\s*$",
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
"""Maximum number of characters of a line that is searched. On a line of a megabyte the patterns would take hours."""


@dataclass(frozen=True)
class Event:
    kind: Kind
    line: int
    text: str
    groups: dict[str, str]


def _events(lines: Sequence[str]) -> Iterator[Event]:
    """Yield the lines that match a pattern, and the end of each quoted block (three backticks), but not its start."""
    is_quoted = False
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if len(line) > _LONGEST:
            continue
        if text.startswith("```"):
            is_quoted = not is_quoted
            if not is_quoted:
                yield Event("end", number, text, {})
        elif match := next(((kind, found) for kind, one in _PATTERNS.items() if (found := one.search(line))), None):
            groups = {name: value for name, value in match[1].groupdict().items() if value}
            yield Event(match[0], number, text, groups)
        elif _SAMPLE_BEGINS.search(line):
            raise ResultsError(
                f"line {number}: incomplete line of a timed run; get the whole log, or remove the line: {text[:80]!r}"
            )


_NAMES: dict[str, re.Pattern[str]] = {
    quant: re.compile(rf"(?<![A-Za-z0-9])(?:{names})(?![A-Za-z0-9])", re.IGNORECASE)
    for quant, names in {
        "fp16": "fp16|float16",
        "int8": r"(?<!llm[.-])(?<!bitsandbytes )int8(?!-dynamic)",
        "int8-dynamic": r"int8-dynamic|w8a8",
        "fp8": r"torchao[ -]?fp8",
        # `int4` alone may be of any library.
        "int4": r"torchao[ -]?int4",
        "gptq": "gptq(?:model)?",
        "awq": "(?:auto)?awq",
        "bnb4": "bnb4|nf4|bitsandbytes(?![ -]?(?:int)?8)",
        "gguf": "gguf",
        "bnb8": r"bnb8|llm[.-]int8|bitsandbytes[ -]?(?:int)?8(?:[ -]?bits?)?",
    }.items()
}
QUANTS = tuple(_NAMES)  # All quantizations of this program.


@dataclass(frozen=True)
class Evidence:
    """Variant of a run, and the line of the log that names it."""

    quant: str
    source: str  # `line 12: 'Applying int8 quantization'`.
    label: str = ""  # Heading that names no quantization, such as `New`; it is part of the variant's name.
    is_by_silence: bool = False  # True if the model counts as unquantized because no line names a quantization.

    @property
    def name(self) -> str:
        return f"{self.quant} {self.label}".strip()


def _evidence_after(earlier: Evidence | None, events: Sequence[Event]) -> Evidence | None:
    """Return the variant of the run that follows `events`: named by `events`, or else `earlier`; None if unknown."""
    evidence, is_fresh = earlier, False
    for event in events:
        name = event.groups.get("label") or event.groups.get("quant") or event.groups.get("quantized_to")
        quant = _named(name or "")
        if event.kind in ("label", "quantize") and quant:
            evidence, is_fresh = Evidence(quant, _quoted(event)), True
        elif event.kind in ("fail", "end", "quantize"):
            # After a crash, or for a quantization that this program does not have, the variant is unknown.
            evidence, is_fresh = None, False
        elif event.kind == "label" and evidence:
            source = f"{evidence.source}, then {_quoted(event)}"
            evidence = replace(evidence, label=event.groups["label"], source=source)
        elif event.kind == "load" and not is_fresh:
            source = f"line {event.line}: a model is loaded, and no line names a quantization"
            evidence = Evidence("fp16", source, is_by_silence=True)
    return evidence


def _evidence_at(first: Event, earlier: Evidence | None) -> Evidence | None:
    if earlier and not earlier.is_by_silence and first.kind != "variant":
        return earlier
    quant = first.groups.get("quant")
    if quant not in QUANTS:
        quant = _named(quant or first.groups.get("model") or "")
    return Evidence(quant, _quoted(first)) if quant else earlier


def _named(text: str) -> str | None:
    quants = [quant for quant, pattern in _NAMES.items() if pattern.search(text)]
    return quants[0] if len(quants) == 1 else None


def _quoted(event: Event) -> str:
    return f"line {event.line}: '{event.text[:80]}'"


_UNITS = {"G": 2**30, "M": 2**20}


@dataclass(frozen=True)
class LoggedSample:
    latency_s: float
    tokens: int  # New tokens of all sequences of the batch.
    memory_bytes: int | None  # Memory at the end of the repeat; None if it is not printed.


@dataclass(frozen=True)
class LoggedCell:
    prompt_tokens: int
    new_tokens: int
    batch_size: int
    has_distinct_prompts: bool
    runs: int  # Planned number of repeats: 5 for `run 1/5`; 0 if there is no such line.
    samples: tuple[LoggedSample, ...]


@dataclass(frozen=True)
class LoggedRun:
    line: int
    evidence: Evidence | None
    name: str | None  # Name of the variant as printed by `benchmarker run`, or `evidence.name`.
    model: str | None
    device: str | None
    cells: tuple[LoggedCell, ...]


def find_runs(lines: Sequence[str]) -> tuple[LoggedRun, ...]:
    """Find all runs of a log. Raises ResultsError if the log contradicts itself, or lines are missing."""
    runs: list[tuple[Event, Evidence | None, list[list[Event]]]] = []
    evidence: Evidence | None = None
    before: list[Event] = []
    for event in _without_plain_text(list(_events(lines)), lines):
        is_between = bool(before) or not runs
        if event.kind in ("start", "variant") or (event.kind == "cell" and is_between):
            evidence = _evidence_after(evidence, before)
            runs.append((event, _evidence_at(event, evidence), []))
            before = []
        if event.kind == "cell":
            runs[-1][2].append([event])
        elif event.kind == "sample":
            if is_between or not runs[-1][2]:
                raise ResultsError(
                    f"line {event.line}: a timed run without a heading such as `prompt of 26, 50 new tokens`; add it"
                )
            runs[-1][2][-1].append(event)
        elif event.kind not in ("start", "variant"):
            before.append(event)
    return tuple(
        LoggedRun(
            line=first.line,
            evidence=found,
            name=first.groups.get("name") or (found.name if found else None),
            model=first.groups.get("model"),
            device=first.groups.get("device"),
            cells=tuple(_cell(heading, samples) for heading, *samples in cells),
        )
        for first, found, cells in runs
    )


def _without_plain_text(events: Sequence[Event], lines: Sequence[str]) -> Iterator[Event]:
    """Drop short lines that are no headings. A heading names a quantization, or is like `# New` just above a run."""
    for event, following in zip_longest(events, events[1:]):
        label = event.groups.get("label")
        is_heading = label is None or _named(label) is not None
        if not is_heading and following and following.kind == "start" and event.text != label:
            is_heading = not any(map(str.strip, lines[event.line : following.line - 1]))
        if is_heading:
            yield event


def _cell(heading: Event, samples: Sequence[Event]) -> LoggedCell:
    groups = heading.groups
    numbers = [int(event.groups["number"]) for event in samples]
    for event, number, earlier in zip(samples, numbers, [0, *numbers], strict=False):
        if number <= earlier:
            raise ResultsError(
                f"line {event.line}: run {number} after run {earlier}; add the heading that is missing between them"
            )
    return LoggedCell(
        prompt_tokens=int(groups.get("prompt") or groups["prompt_of"]),
        new_tokens=int(groups.get("new") or groups["new_of"]),
        batch_size=int(groups.get("batch", "1")),
        has_distinct_prompts="distinct" in groups,
        runs=max((int(event.groups["runs"]) for event in samples), default=0),
        samples=tuple(map(_sample, samples)),
    )


def _sample(event: Event) -> LoggedSample:
    groups = event.groups
    latency_s, tokens, rate = float(groups["latency_s"]), int(groups["tokens"]), float(groups["rate"])
    # Rate and latency are printed with few digits.
    if not latency_s or abs(rate - tokens / latency_s) > 0.01 + 0.01 * rate:
        raise ResultsError(
            f"line {event.line}: {tokens} tokens in {latency_s} s are not {rate} tokens/s; remove the line"
        )
    size = float(groups.get("memory", "0"))
    return LoggedSample(latency_s, tokens, round(size * _UNITS[groups["unit"].upper()]) if size else None)
