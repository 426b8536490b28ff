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
        "awq": "(?:auto)?awq",
        "bnb4": "bnb4|nf4|bitsandbytes(?![ -]?(?:int)?8)",
        "gguf": "gguf",
        "bnb8": r"bnb8|llm[.-]int8|bitsandbytes[ -]?(?:int)?8(?:[ -]?bits?)?",
    }.items()
}
QUANTS = tuple(_NAMES)
"""Quantizations that a log may be of: all that this program has."""


@dataclass(frozen=True)
class Evidence:
    """Which variant a run is, and where the log says so."""

    quant: str
    source: str
    """For a reader: `line 12: 'Applying int8 quantization'`."""
    label: str = ""
    """A heading that names no quantization, such as `New`, and so is part of the variant's name."""
    is_by_silence: bool = False
    """Whether the model counts as unquantized because no line says that it was quantized."""

    @property
    def name(self) -> str:
        return f"{self.quant} {self.label}".strip()


def evidence_after(earlier: Evidence | None, events: Sequence[Event]) -> Evidence | None:
    """The variant of the run that follows these lines; None where the log does not say it.

    Args:
        earlier: The evidence of the lines above.
    """
    evidence, is_fresh = earlier, False
    for event in events:
        words = event.groups.get("label") or event.groups.get("quant") or event.groups.get("quantized_to")
        quant = _named(words or "")
        if event.kind in ("fail", "end"):
            evidence, is_fresh = None, False
        elif event.kind in ("label", "quantize") and quant:
            evidence, is_fresh = Evidence(quant, _quoted(event)), True
        elif event.kind == "label" and evidence:
            source = f"{evidence.source}, then {_quoted(event)}"
            evidence = replace(evidence, label=event.groups["label"], source=source)
        elif event.kind == "quantize":
            # Some form that this program does not know.
            evidence, is_fresh = None, False
        elif event.kind == "load" and not is_fresh:
            source = f"line {event.line}: a model is loaded, and no line says that it is quantized"
            evidence = Evidence("fp16", source, is_by_silence=True)
    return evidence


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
    """The quantization that the text names; None where it names none or several."""
    quants = [quant for quant, pattern in _NAMES.items() if pattern.search(text)]
    return quants[0] if len(quants) == 1 else None


def _quoted(event: Event) -> str:
    return f"line {event.line}: '{event.text[:80]}'"
