"""Text of numbers, counts, durations and file names. Memory is in GiB (2^30 bytes); a missing value is a dash."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarker.core.stats import Estimate, Ratio

GIB = 2**30
MIB = 2**20
MISSING = "–"
DIGITS = 4
DAY_MINUTES = 1440


def gib(size_bytes: float | None) -> str:
    """Format bytes as `7.59 GiB`, small sizes as `3.2 MiB`."""
    if size_bytes is None:
        return MISSING
    return f"{size_bytes / MIB:.1f} MiB" if size_bytes < GIB / 10 else f"{size_bytes / GIB:.2f} GiB"


def seconds(duration_s: float | None) -> str:
    """Format seconds with three or four digits: `1.3832 s`, `27.31 ms`, `4.10 us`."""
    if duration_s is None:
        return MISSING
    if duration_s >= 100:
        return f"{duration_s:.0f} s"
    if duration_s >= 1:
        return f"{duration_s:.4f} s" if duration_s < 10 else f"{duration_s:.2f} s"
    return f"{duration_s * 1e3:.2f} ms" if duration_s >= 1e-3 else f"{duration_s * 1e6:.2f} us"


def ms(duration_s: float) -> str:
    value = duration_s * 1e3
    return f"{value:.{1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3}f} ms"


def rate(per_s: float, unit: str = "token") -> str:
    """Return `120 tok/s`, or `80.5 calls/s` for another unit."""
    return f"{per_s:.{0 if per_s >= 100 else 1}f} {'tok' if unit == 'token' else f'{unit}s'}/s"


def significant(number: float | None, digits: int = DIGITS) -> str:
    """Format a number with `digits` significant digits: `36.15`, `1204`, `0.0312`; below 0.0001 as `1.20e-05`."""
    if number is None:
        return MISSING
    if number == 0:
        return "0"
    if abs(number) >= 1:
        return decimal(number, digits=digits)
    return f"{number:.{digits}g}" if abs(number) >= 1e-4 else f"{number:.2e}"


def decimal(value: float, *, digits: int = DIGITS) -> str:
    """Format a number with `digits` significant digits, trailing zeros included: `36.10`, `0.03120`."""
    return f"{value:.{_places(value, digits=digits)}f}"


def with_spread(measured: Estimate | None, *, scale: float = 1.0) -> str:
    """Format `36.15 [36.02, 36.28]`, or `36.15 ± 0.03` if there is no interval; `scale` converts the unit."""
    if measured is None:
        return MISSING
    value = measured.value * scale
    places = _places(value)
    if measured.low is not None and measured.high is not None:
        return f"{value:.{places}f} [{measured.low * scale:.{places}f}, {measured.high * scale:.{places}f}]"
    if measured.deviation is None:
        return f"{value:.{places}f}"
    deviation = measured.deviation * scale
    needed = _places(deviation, digits=1) if deviation else places
    places = min(max(places, needed), places + 2)
    return f"{value:.{places}f} ± {deviation:.{places}f}"


def times(ratio: Ratio) -> str:
    """Format `1.83x`, or `1.83x [1.79, 1.87]` if there is an interval."""
    places = max(2, _places(ratio.value, digits=2)) if ratio.value < 10 else 1
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.{places}f}x"
    return f"{ratio.value:.{places}f}x [{ratio.low:.{places}f}, {ratio.high:.{places}f}]"


def percent(fraction: float, *, places: int | None = None) -> str:
    """Format 0.89 as `89 %` and 0.089 as `8.9 %`, or with `places` decimals."""
    if places is None:
        places = 1 if 0 < 100 * abs(fraction) < 9.95 else 0
    return f"{100 * fraction:.{places}f} %"


def plural(number: int, singular: str, many: str) -> str:
    return f"{number} {singular if number == 1 else many}"


def abridged(texts: Sequence[str], maximum: int, *, separator: str = ", ") -> str:
    """Join at most `maximum` texts and the number of the remaining texts: `a, b and 2 more`."""
    more = f" and {len(texts) - maximum} more" if len(texts) > maximum else ""
    return separator.join(texts[:maximum]) + more


def range_text(texts: Sequence[str]) -> str:
    """Return the first and the last of texts in ascending order: `36 to 62`, or only `36` if they are equal."""
    return " to ".join(dict.fromkeys((texts[0], texts[-1])))


def approximate_duration(duration_s: float) -> str:
    """Format `less than a minute`, `about 12 min`, `about 2 h 40 min`, `about 1.7 days`."""
    minutes = round(duration_s / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 90:
        return f"about {minutes} min"
    if minutes >= DAY_MINUTES:
        return f"about {minutes / DAY_MINUTES:.1f} days"
    return f"about {minutes // 60} h {minutes % 60:02} min"


def approximate_range(low_s: float, high_s: float) -> str:
    """Format `about 12 min to 1 h 40 min`, or only the longer duration if it is not much above the shorter one."""
    longer = approximate_duration(high_s)
    return f"{approximate_duration(low_s)} to {longer.removeprefix('about ')}" if high_s > 1.5 * low_s + 60 else longer


def slug(name: str) -> str:
    """Return a file name: `gptq kernel=triton` becomes `gptq-kernel-triton-5c1d0f2a`, with a hash at its end."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:60]
    if safe == name:
        return safe
    return f"{safe or 'unnamed'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _places(value: float, *, digits: int = DIGITS) -> int:
    if value == 0:
        return 0
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))
