"""Which variant is it? What the lines before a run say, and never a guess.

A line that names a quantization counts until another does. A model that was loaded with no such line after it is the
plain one: the reference script says when it quantizes. After a crash, or outside of the quoted block, nothing holds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarker.logs.events import Event

_NAMES: dict[str, re.Pattern[str]] = {
    quant: re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])", re.IGNORECASE)
    for quant, words in {
        "fp16": "fp16|float16",
        "int8": r"(?<!llm[.-])(?<!bitsandbytes )int8(?!-dynamic)",
        "int8-dynamic": r"int8-dynamic|w8a8",
        "fp8": r"torchao[ -]?fp8",
        # By this name alone any library's may be meant; a run of this program says it in a place of its own.
        "int4": r"torchao[ -]?int4",
        "gptq": "gptq(?:model)?",
        "bnb4": "bnb4|nf4|bitsandbytes(?![ -]?(?:int)?8)",
        "bnb8": r"bnb8|llm[.-]int8|bitsandbytes[ -]?(?:int)?8(?:[ -]?bits?)?",
    }.items()
}
QUANTS = tuple(_NAMES)
"""Quantizations that a log may be of: all that this program has."""


@dataclass(frozen=True)
class Evidence:
    """What says which variant a run is."""

    quant: str
    said: str
    """For a person: where it is said, and how."""
    label: str = ""
    """What a heading adds that names no quantization, such as `New`."""
    is_by_silence: bool = False
    """Whether it rests on no line that says otherwise."""

    @property
    def name(self) -> str:
        return f"{self.quant} {self.label}".strip()


def evidence_after(earlier: Evidence | None, events: Sequence[Event]) -> Evidence | None:
    """What is known once these lines were read. None where the log does not say.

    Args:
        earlier: What was known before them.
    """
    known, is_fresh = earlier, False
    for event in events:
        named = _named(event.groups.get("label") or event.groups.get("quant") or event.groups.get("done") or "")
        if event.kind in ("fail", "end"):
            known, is_fresh = None, False
        elif event.kind in ("label", "quantize") and named:
            known, is_fresh = Evidence(named, _quoted(event)), True
        elif event.kind == "label" and known:
            known = replace(known, label=event.groups["label"], said=f"{known.said}, then {_quoted(event)}")
        elif event.kind == "quantize":
            # Some form that this program does not know.
            known, is_fresh = None, False
        elif event.kind == "load" and not is_fresh:
            said = f"line {event.line}: a model is loaded, and no line says that it is quantized"
            known = Evidence("fp16", said, is_by_silence=True)
    return known


def evidence_of_start(event: Event) -> Evidence | None:
    """What the first line of a run says itself: `int8 compile: Qwen/Qwen3-4B on ...`, or the name of the model."""
    quant = event.groups.get("quant")
    if quant not in QUANTS:
        quant = _named(quant or event.groups.get("model") or "")
    return Evidence(quant, _quoted(event)) if quant else None


def is_label(event: Event, following: Event | None, gap: Sequence[str]) -> bool:
    """Whether a short line is a heading: it names a quantization, or it stands right above a run.

    Args:
        following: The next line that means something.
        gap: The lines between the two.
    """
    is_bare = event.text == event.groups["label"]
    if _named(event.groups["label"]):
        return True
    return not is_bare and following is not None and following.kind == "start" and not any(map(str.strip, gap))


def _named(text: str) -> str | None:
    """The one quantization that the text names."""
    found = [quant for quant, pattern in _NAMES.items() if pattern.search(text)]
    return found[0] if len(found) == 1 else None


def _quoted(event: Event) -> str:
    return f"line {event.line}: '{event.text[:80]}'"
