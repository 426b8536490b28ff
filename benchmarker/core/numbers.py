"""Numbers in a table: as many digits as they deserve, and their spread beside them."""

from __future__ import annotations

import math

from benchmarker.core.stats import Estimate, Ratio
from benchmarker.core.units import MISSING

DIGITS = 4


def with_spread(measured: Estimate | None, *, scale: float = 1.0) -> str:
    """`36.15 [36.02, 36.28]`, or `36.15 ± 0.03` where there are too few rounds for an interval.

    Args:
        scale: From base units to the column's, such as 1000 for milliseconds.
    """
    if measured is None:
        return MISSING
    value = measured.value * scale
    if measured.low is not None and measured.high is not None:
        places = _places(value)
        return f"{value:.{places}f} [{measured.low * scale:.{places}f}, {measured.high * scale:.{places}f}]"
    if measured.deviation is None:
        return f"{value:.{_places(value)}f}"
    deviation = measured.deviation * scale
    places = _places_for(value, deviation)
    return f"{value:.{places}f} ± {deviation:.{places}f}"


def times(ratio: Ratio) -> str:
    """`1.83x`, or `1.83x [1.79, 1.87]` where there is an interval."""
    places = max(2, _places(ratio.value, digits=2)) if ratio.value < 10 else 1
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.{places}f}x"
    return f"{ratio.value:.{places}f}x [{ratio.low:.{places}f}, {ratio.high:.{places}f}]"


def decimal(value: float, *, digits: int = DIGITS) -> str:
    """A plain decimal with that many significant digits, trailing zeros kept so that a column lines up."""
    return f"{value:.{_places(value, digits=digits)}f}"


def percent(fraction: float, *, places: int | None = None) -> str:
    """`89 %`, or `8.9 %` below 10 %; with `places` always so many decimals."""
    if places is None:
        places = 1 if 0 < 100 * abs(fraction) < 9.95 else 0
    return f"{100 * fraction:.{places}f} %"


def _places(value: float, *, digits: int = DIGITS) -> int:
    """Decimal places that show `digits` significant ones."""
    if value == 0:
        return 0
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))


def _places_for(value: float, deviation: float) -> int:
    """At most two places more where the deviation would else read as zero."""
    places = _places(value)
    needed = _places(deviation, digits=1) if deviation else places
    return min(max(places, needed), places + 2)
