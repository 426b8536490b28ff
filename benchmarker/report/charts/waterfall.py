"""The measured time of a token as a sum of its reasons, variants side by side."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from benchmarker.comparison.words import cell_words
from benchmarker.explain.values import Explanation, NotExplained, part_names
from benchmarker.explain.waterfall import GAPS
from benchmarker.report.charts.stacked import Parts, stacked
from benchmarker.report.charts.style import Chart, Ink, label

GAPS_ARE = {"cpu": "Python, and what lies between operators", "device": "time in which the device waits for the host"}
"""By what was profiled."""


def waterfall_chart(found: Sequence[Explanation | NotExplained]) -> Chart | None:
    """Stacked bars as long as the measured token; only where some variant is explained."""
    explained = [one for one in found if isinstance(one, Explanation)]
    if not explained:
        return None
    bars: dict[str, Parts] = {
        one.variant: {part.name: 1e3 * part.seconds for part in one.waterfall.parts if part.seconds > 0}
        for one in explained
    }
    totals = {one.variant: 1e3 * one.waterfall.total_s for one in explained}
    names = [name for name in part_names(explained) if any(name in parts for parts in bars.values())]

    def draw(ink: Ink) -> Figure:
        horizontal = f"ms per {explained[0].unit}, lower is better"
        return stacked(bars, names, ink, horizontal=horizontal, columns=2, nothing=GAPS, totals=totals)

    cells = {one.cell for one in explained}
    where = f" at {cell_words(explained[0].cell)}" if len(cells) == 1 else ""
    return Chart(
        "waterfall",
        f"Why a token takes as long as it does{where}",
        " ".join(
            [
                "A bar, and the number beside it, is the token as measured without the profiler. Its gaps are "
                f"{_gaps(explained)}; its other parts are those of the profiled generation.",
                *_missing(found),
            ]
        ),
        draw,
    )


def _gaps(explained: Sequence[Explanation]) -> str:
    kinds = {one.phase.by for one in explained}
    return " or ".join(words for by, words in GAPS_ARE.items() if by in kinds)


def _missing(found: Sequence[Explanation | NotExplained]) -> list[str]:
    names = [label(one.variant) for one in found if isinstance(one, NotExplained)]
    return [f"Not explained: {', '.join(names)}."] if names else []
