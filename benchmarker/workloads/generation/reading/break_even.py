"""After how many tokens a variant has paid for itself: what it costs before its first token over what each one saves.

    tokens = (quantizing + loading + set-up, less the baseline's) / (baseline's time a token - the variant's)

Cold is the first time on a machine, with quantizing and an empty compiler cache; warm is every later time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarker.core.formatting import seconds
from benchmarker.core.tables import escaped
from benchmarker.workloads.generation.reading.rows import GenerationRow as Row
from benchmarker.workloads.generation.record import GenerationRecord

State = Literal["cold", "warm"]

QUANTIZED_AHEAD = ("gptq",)
"""Forms that are quantized before they are loaded; the others are while loading."""

COMPILED = ("compile", "native")
"""Engines whose setting up is compiling, which a cache on disk makes shorter."""


@dataclass(frozen=True)
class Cost:
    """Seconds before the first token; None where they were not measured."""

    cold_s: float | None
    warm_s: float | None


@dataclass(frozen=True)
class BreakEven:
    """A variant against the baseline."""

    variant: str
    cold_tokens: int | None
    """Tokens until a first run has paid for itself; 0 where it costs no more than the baseline. None if unknown."""
    warm_tokens: int | None
    """Tokens until a later run has paid for itself, likewise."""
    cost: Cost
    saved_s: float
    """Seconds a token less than the baseline's; negative where the variant is slower."""
    verdict: str | None
    """The comparison's verdict on the variant's speed; None where there is none."""

    def sentence(self, baseline: str) -> str:
        """When the variant has paid for itself, for a reader, without the full stop."""
        variant = escaped(self.variant)
        if self.verdict in ("same", "inconclusive") or self.saved_s <= 0:
            why = "is not faster" if self.saved_s <= 0 else f"is not told to be faster ({self.verdict})"
            return f"{variant} {why} than {escaped(baseline)}, and never pays for its loading"
        times = [
            f"{state} {_tokens(tokens)} ({seconds(cost)} before the first token)"
            for state, tokens, cost in (
                ("warm", self.warm_tokens, self.cost.warm_s),
                ("cold", self.cold_tokens, self.cost.cold_s),
            )
            if tokens is not None
        ]
        untested = ", if the difference is real (not tested)" if self.verdict == "not tested" else ""
        return f"{variant} has paid for itself against {escaped(baseline)} after: {'; '.join(times)}{untested}"


def cost_of(records: Sequence[GenerationRecord]) -> Cost:
    """What a variant costs before its first token, by the records of its processes."""
    loads = [record.load for record in records if record.load]
    if not loads:
        return Cost(None, None)
    load_s = statistics.median(load.load_s for load in loads)
    quantized = [load.quantize_s for load in loads if load.quantize_s is not None]
    cold, warm = _setup(records, "cold"), _setup(records, "warm")
    return Cost(
        cold_s=None
        if cold is None or _skips_quantizing(records)
        else load_s + cold + (statistics.median(quantized) if quantized else 0.0),
        warm_s=None if warm is None else load_s + warm,
    )


def _skips_quantizing(records: Sequence[GenerationRecord]) -> bool:
    """Whether weights that take minutes to quantize were random ones, written as if they had been."""
    return any(record.model.load_format == "dummy" and record.variant.quant in QUANTIZED_AHEAD for record in records)


def _setup(records: Sequence[GenerationRecord], state: State) -> float | None:
    """Seconds of set-up with that state of the compiler's cache: 0 for an engine without set-up, None if unmeasured."""
    engines = [record.engine for record in records if record.engine]
    # A compiled step whose cache nobody looked at was set up in one of the two states, and which is not known.
    times = [
        engine.setup_s
        for engine in engines
        if engine.setup_s is not None
        and (engine.setup_cache == state or (not engine.setup_cache and engine.name not in COMPILED))
    ]
    if times:
        return statistics.median(times)
    return 0.0 if engines and all(engine.setup_s is None for engine in engines) else None


def break_even(baseline: Row, variant: Row, *, costs: tuple[Cost, Cost]) -> BreakEven | None:
    """The variant against the baseline in one cell; None where one of them has no rate or no cost.

    Args:
        costs: The baseline's and the variant's.
    """
    if baseline.rate is None or variant.rate is None:
        return None
    before, after = costs
    saved_s = 1 / baseline.rate.value - 1 / variant.rate.value
    cold = _after(before.cold_s, after.cold_s, saved_s)
    warm = _after(before.warm_s, after.warm_s, saved_s)
    if cold is None and warm is None and saved_s > 0:
        return None
    return BreakEven(variant.variant, cold, warm, after, saved_s, variant.call.verdict if variant.call else None)


def _after(before_s: float | None, after_s: float | None, saved_s: float) -> int | None:
    if before_s is None or after_s is None or saved_s <= 0:
        return None
    return max(0, math.ceil((after_s - before_s) / saved_s))


def _tokens(count: int) -> str:
    return f"{count:,} tokens" if count else "at once"
