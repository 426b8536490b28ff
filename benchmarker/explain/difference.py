"""Differences between two variants, part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarker.comparison.rows import CellKey
from benchmarker.core.formatting import percent
from benchmarker.core.stats import SAME_WITHIN
from benchmarker.core.tables import escaped
from benchmarker.explain.values import Explanation, NotExplained, ShareName, Waterfall, signed_ms

SMALLEST_PART = 0.02
"""Part of the largest difference below which a difference is not named."""
_TOGETHER: dict[ShareName, str] = {
    "floor": "matrix products",
    "excess": "matrix products",
    "products": "matrix products",
}
_WORDS = {"other": "other kernels", "not in the table": "kernels not in the tables"}
UNSURE = ("same", "inconclusive", "not tested")
"""Verdicts without a significant difference."""


@dataclass(frozen=True)
class Contrast:
    """A variant compared with another, in seconds per unit."""

    variant: str
    baseline: str
    ratio: float
    """Time per unit of the variant divided by the baseline's."""
    parts: tuple[tuple[str, float], ...]
    """Additional seconds of the variant by part, the largest difference first. Their sum is the total difference."""
    is_converting: bool = False
    """True if the variant converts each weight by a copy before it is multiplied."""
    unit: str = "token"
    verdict: str | None = None
    """Verdict of the comparison on whole calls."""

    def sentence(self) -> str:
        """Return `int8 is 1.64x slower than fp16: +24.1 ms/token copies and casts, -6.6 ms matrix products`."""
        slower_by = max(self.ratio, 1 / self.ratio)
        speed = (
            f"takes as long a {self.unit} as {escaped(self.baseline)} (within {percent(SAME_WITHIN, places=0)})"
            if slower_by <= 1 + SAME_WITHIN
            else f"is {slower_by:.2f}x {'slower' if self.ratio > 1 else 'faster'} than {escaped(self.baseline)}"
        )
        if self.verdict in UNSURE:
            speed += f" ({self.verdict})"
        largest = max((abs(seconds) for _, seconds in self.parts), default=0.0)
        parts = [part for part in self.parts if abs(part[1]) > SMALLEST_PART * largest][:4]
        words = [f"{signed_ms(seconds)} {self._named(name)}" for name, seconds in parts]
        if words:
            words[0] = words[0].replace(" ms ", f" ms/{self.unit} ", 1)
        return f"{escaped(self.variant)} {speed}{': ' if words else ''}{', '.join(words)}"

    def _named(self, name: str) -> str:
        if name == "dequantizing" and self.is_converting:
            return f"{name} (converting each weight before it is multiplied)"
        return name


def contrast(baseline: Explanation, variant: Explanation, verdict: str | None = None) -> Contrast | None:
    """Return the contrast with the baseline; None for different cells, or if only one side includes prefill."""
    if baseline.phase.is_decode != variant.phase.is_decode or baseline.cell != variant.cell:
        return None
    before, after = _parts(baseline.waterfall), _parts(variant.waterfall)
    changes = [(name, after.get(name, 0.0) - before.get(name, 0.0)) for name in before | after]
    return Contrast(
        variant=variant.variant,
        baseline=baseline.variant,
        ratio=variant.waterfall.total_s / baseline.waterfall.total_s,
        parts=tuple(sorted(filter(lambda change: change[1], changes), key=lambda change: -abs(change[1]))),
        is_converting=variant.conversion is not None,
        unit=variant.unit,
        verdict=verdict,
    )


def contrasts_of(
    explanations: Sequence[Explanation | NotExplained],
    baseline: str,
    verdicts: Mapping[tuple[str, CellKey], str | None],
) -> tuple[Contrast, ...]:
    """Return the contrast of every explained variant with the baseline, if the baseline is explained.

    Args:
        verdicts: Verdicts of the comparison by variant and cell.
    """
    explained = [explanation for explanation in explanations if isinstance(explanation, Explanation)]
    base = next((explanation for explanation in explained if explanation.variant == baseline), None)
    if base is None:
        return ()
    contrasts = (
        contrast(base, variant, verdicts.get((variant.variant, variant.cell)) if variant.cell else None)
        for variant in explained
        if variant is not base
    )
    return tuple(filter(None, contrasts))


def _parts(fall: Waterfall) -> dict[str, float]:
    times: dict[str, float] = {}
    for part in fall.parts:
        name = _TOGETHER.get(part.share, _WORDS.get(part.name, part.name))
        times[name] = times.get(name, 0.0) + part.seconds
    return times
