"""The measured time of a token as a sum of its reasons, variants side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from matplotlib.figure import Figure

from benchmarker.explaining.values import Explanation, NotExplained, PartName
from benchmarker.page.charts.stacked import Parts, stacked
from benchmarker.page.charts.style import Chart, Ink, label
from benchmarker.report.words import cell_words

GAPS: PartName = "gaps (launches, host)"


def waterfall_chart(found: Sequence[Explanation | NotExplained]) -> Chart | None:
    """Stacked bars as long as the measured token; only where some variant is explained."""
    explained = [one for one in found if isinstance(one, Explanation)]
    if not explained:
        return None
    bars: dict[str, Parts] = {
        one.variant: {part.name: 1e3 * part.seconds for part in one.waterfall.parts if part.seconds > 0}
        for one in explained
    }
    names = [name for name in get_args(PartName) if any(name in parts for parts in bars.values())]

    def draw(ink: Ink) -> Figure:
        horizontal = "ms per decoded token, lower is better"
        return stacked(bars, names, ink, horizontal=horizontal, columns=2, nothing=GAPS)

    cells = {one.cell for one in explained}
    where = f" at {cell_words(explained[0].cell)}" if len(cells) == 1 else ""
    return Chart(
        "waterfall",
        f"Why a token takes as long as it does{where}",
        " ".join(
            [
                "A bar is as long as the token that was measured without the profiler; its kernel parts are those of "
                "the profiled generation, and the gaps are what is left: there the device waits for the host.",
                *_overlap(explained),
                *_missing(found),
            ]
        ),
        draw,
    )


def _overlap(explained: Sequence[Explanation]) -> list[str]:
    """Parts that add up to more than the token, which no bar shows."""
    over = [one for one in explained if any(part.seconds < 0 for part in one.waterfall.parts)]
    if not over:
        return []
    names = ", ".join(label(one.variant) for one in over)
    return [f"The parts of {names} overlap: they add up to more than the token."]


def _missing(found: Sequence[Explanation | NotExplained]) -> list[str]:
    names = [label(one.variant) for one in found if isinstance(one, NotExplained)]
    return [f"Not explained: {', '.join(names)}."] if names else []
