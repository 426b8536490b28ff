"""What a printed log of a comparison of mixers holds beside its profiler tables: sizes, speeds, memory and scores.

Such logs print a line a model under a heading with the length, as `Softmax | 24.5±0.06ms | 1337286 tok/s | 1490.0MB`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

_LENGTH = re.compile(r"(?:序列长度|seq(?:uence)?[_ ]?len(?:gth)?)\s*[:=]\s*(\d+)\s*$", re.IGNORECASE)
_SPEED = re.compile(r"^\s*(\w+)\s*\|\s*([\d.]+)\s*±\s*[\d.]+\s*ms\s*\|\s*[\d.]+\s*tok/s\s*\|\s*([\d.]+)\s*MB")
_PASSES = re.compile(r"^\s*(\w+)\s*\|\s*Fwd:\s*([\d.]+)\s*MB\s*\|\s*Bwd:\s*([\d.]+)\s*MB")
_ACCURACY = re.compile(r"^\s*(\w+)\s*\|\s*Acc:\s*([\d.]+)\s*%")
_PERPLEXITY = re.compile(r"^\s*(\w+)\s*\|\s*Final PPL:\s*([\d.]+)")
_SIZES = re.compile(r"^\s*(\w+):\s*\{([^}]*'hidden_size'[^}]*)\}")
_NUMBER = re.compile(r"'(\w+)':\s*(\d+)")
_TRAINING = re.compile(r"(?:训练|training|train):\s*(\w+)\s*\(", re.IGNORECASE)
_PARAMETERS = re.compile(r"(?:参数量|param(?:eter)?s?)\s*:\s*([\d.]+)\s*M\b", re.IGNORECASE)
_TOTALS = re.compile(r"^(\w+)\s+\d+\s+\d+\s+\d+\s+(\d{1,3}(?:,\d{3})+)\s*$")
_VOCABULARY = re.compile(r"vocab_size\s*:\s*(\d+)")
_CHARACTERS = re.compile(r"(?:文本长度|characters?)\s*:\s*(\d+)")
_TOKENS = re.compile(r"\btokens\s*:\s*(\d+)")
_OUT_OF_MEMORY = re.compile(r"^\s*(\w+)\s*\|.*out of memory", re.IGNORECASE)

ByLength = dict[str, dict[int, float]]
"""By model, then by length."""


@dataclass
class MixerLog:
    """The printed values, as they are read line by line."""

    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    """hidden_size, num_layers and num_heads of each model."""
    step_s: ByLength = field(default_factory=lambda: defaultdict(dict))
    """Of a training step without the profiler."""
    peak_mb: ByLength = field(default_factory=lambda: defaultdict(dict))
    """Of that step."""
    forward_mb: ByLength = field(default_factory=lambda: defaultdict(dict))
    """Of a test of memory alone."""
    backward_mb: ByLength = field(default_factory=lambda: defaultdict(dict))
    accuracy: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Shares, of all tasks and sizes."""
    perplexity: dict[str, float] = field(default_factory=dict)
    parameters: dict[str, float] = field(default_factory=dict)
    """Of the trained models, as printed: rounded to 10,000."""
    totals: dict[str, int] = field(default_factory=dict)
    """Of a table of configurations."""
    vocabulary: int | None = None
    is_by_character: bool = False
    out_of_memory: dict[str, int] = field(default_factory=dict)
    """Length at which a model's last part did not fit."""

    @property
    def lengths(self) -> list[int]:
        """At which speeds are printed."""
        return sorted({length for times in self.step_s.values() for length in times})


def read_values(text: str) -> MixerLog:
    """All values that are there; an empty log for any other text."""
    log, length, model = MixerLog(), 0, ""
    characters = tokens = None
    for line in text.splitlines():
        if match := _LENGTH.search(line):
            length = int(match[1])
        elif match := _TRAINING.search(line):
            model = match[1]
        elif match := _PARAMETERS.search(line):
            log.parameters[model] = float(match[1]) * 1e6
        else:
            _read_row(log, line, length)
        if log.vocabulary is None and (match := _VOCABULARY.search(line)):
            log.vocabulary = int(match[1])
        characters = characters or _whole(_CHARACTERS, line)
        tokens = tokens or _whole(_TOKENS, line)
    log.is_by_character = characters is not None and characters == tokens
    return log


def _read_row(log: MixerLog, line: str, length: int) -> None:
    """A line that begins with a model's name."""
    if match := _SPEED.match(line):
        log.step_s[match[1]][length] = float(match[2]) / 1e3
        log.peak_mb[match[1]][length] = float(match[3])
    elif match := _PASSES.match(line):
        log.forward_mb[match[1]][length] = float(match[2])
        log.backward_mb[match[1]][length] = float(match[3])
    elif match := _ACCURACY.match(line):
        log.accuracy[match[1]].append(float(match[2]) / 100)
    elif match := _PERPLEXITY.match(line):
        log.perplexity[match[1]] = float(match[2])
    elif match := _SIZES.match(line):
        log.sizes[match[1]] = {name: int(number) for name, number in _NUMBER.findall(match[2])}
    elif match := _TOTALS.match(line):
        log.totals[match[1]] = int(match[2].replace(",", ""))
    elif match := _OUT_OF_MEMORY.match(line):
        log.out_of_memory[match[1]] = length


def _whole(pattern: re.Pattern[str], line: str) -> int | None:
    match = pattern.search(line)
    return int(match[1]) if match else None


def named(names: Iterable[str], *words: str) -> str | None:
    """The first name with one of these words in it, in small letters."""
    return next((name for name in names if any(word in name.lower() for word in words)), None)
