"""Two variants, part by part: where the time of the slower one goes."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarker.explaining.values import Explanation, PartName, Waterfall
from benchmarker.explaining.words import signed_ms

SHOWN = 0.02
"""Parts that differ by less of the slower token are left to the table."""
SAME_WITHIN = 0.02

_TOGETHER: tuple[tuple[str, tuple[PartName, ...]], ...] = (
    ("matrix products", ("reading the weights", "matrix products beyond that", "matrix products")),
    ("dequantizing", ("dequantizing",)),
    ("attention", ("attention",)),
    ("KV cache", ("KV cache",)),
    ("norms, rotary, elementwise", ("norms, rotary, elementwise",)),
    ("copies and casts", ("copies and casts",)),
    ("sampling", ("sampling",)),
    ("communication", ("communication",)),
    ("other kernels", ("other",)),
    ("kernels not in the tables", ("not in the table",)),
    ("gaps (launches, host)", ("gaps (launches, host)",)),
    ("unexplained", ("unexplained",)),
)


@dataclass(frozen=True)
class Difference:
    """A variant against another, in seconds a token."""

    variant: str
    baseline: str
    ratio: float
    """A token of the variant over one of the baseline."""
    parts: tuple[tuple[str, float], ...]
    """What the variant spends more, largest difference first; they add up to the difference of the totals."""
    is_converting: bool = False
    """Whether the variant's copies convert each weight before it is multiplied."""

    def sentence(self) -> str:
        """`int8 is 1.64x slower than fp16: +24.1 ms/token copies and casts, -6.6 ms matrix products`."""
        slower_by = max(self.ratio, 1 / self.ratio)
        speed = (
            f"takes as long a token as {self.baseline} (within {100 * SAME_WITHIN:.0f} %)"
            if slower_by <= 1 + SAME_WITHIN
            else f"is {slower_by:.2f}x {'slower' if self.ratio > 1 else 'faster'} than {self.baseline}"
        )
        largest = max((abs(seconds) for _, seconds in self.parts), default=0.0)
        shown = [part for part in self.parts if abs(part[1]) > SHOWN * largest][:4]
        words = [f"{signed_ms(seconds)} {self._named(name)}" for name, seconds in shown]
        if words:
            words[0] = words[0].replace(" ms ", " ms/token ", 1)
        return f"{self.variant} {speed}: {', '.join(words)}" if words else f"{self.variant} {speed}"

    def _named(self, name: str) -> str:
        if name == "copies and casts" and self.is_converting:
            return f"{name} (converting each weight before it is multiplied)"
        return name


def difference(baseline: Explanation, variant: Explanation) -> Difference | None:
    """The variant against the baseline; None where their tokens are not the same thing."""
    if baseline.phase.is_decode != variant.phase.is_decode or baseline.cell != variant.cell:
        return None
    before, after = _parts(baseline.waterfall), _parts(variant.waterfall)
    changes = [(name, after[name] - before[name]) for name in before]
    return Difference(
        variant=variant.variant,
        baseline=baseline.variant,
        ratio=variant.waterfall.total_s / baseline.waterfall.total_s,
        parts=tuple(sorted((one for one in changes if one[1]), key=lambda one: -abs(one[1]))),
        is_converting=variant.conversion is not None,
    )


def _parts(fall: Waterfall) -> dict[str, float]:
    """By what two variants have in common: the ideal time of the products is not known for all."""
    return {name: fall.of(*names) for name, names in _TOGETHER}
