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


def waterfall_chart(explanations: Sequence[Explanation | NotExplained]) -> Chart | None:
    """Stacked bars as long as the measured token; None where no variant is explained."""
    explained = [explanation for explanation in explanations if isinstance(explanation, Explanation)]
    if not explained:
        return None
    bars: dict[str, Parts] = {
        explanation.variant: {part.name: 1e3 * part.seconds for part in explanation.waterfall.parts if part.seconds > 0}
        for explanation in explained
    }
    totals = {explanation.variant: 1e3 * explanation.waterfall.total_s for explanation in explained}
    names = [name for name in part_names(explained) if any(name in parts for parts in bars.values())]

    def draw(ink: Ink) -> Figure:
        horizontal = f"ms per {explained[0].unit}, lower is better"
        return stacked(bars, names, ink, horizontal=horizontal, columns=2, nothing=GAPS, totals=totals)

    cells = {explanation.cell for explanation in explained}
    where = f" at {cell_words(explained[0].cell)}" if len(cells) == 1 else ""
    return Chart(
        "waterfall",
        f"Why a token takes as long as it does{where}",
        " ".join(
            [
                "A bar, and the number beside it, is the token as measured without the profiler. Its gaps are "
                f"{_gaps(explained)}; its other parts are those of the profiled generation.",
                *_missing(explanations),
            ]
        ),
        draw,
    )


def _gaps(explained: Sequence[Explanation]) -> str:
    kinds = {explanation.phase.by for explanation in explained}
    return " or ".join(words for by, words in GAPS_ARE.items() if by in kinds)


def _missing(explanations: Sequence[Explanation | NotExplained]) -> list[str]:
    names = [label(explanation.variant) for explanation in explanations if isinstance(explanation, NotExplained)]
    return [f"Not explained: {', '.join(names)}."] if names else []
