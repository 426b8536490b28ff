"""Numbers inside a sentence."""

from __future__ import annotations

from benchmarker.core import tables
from benchmarker.profiling.profile_table import NAME_COLUMNS, shortened


def ms(seconds: float) -> str:
    """`27.8 ms`, with three digits."""
    value = seconds * 1e3
    places = 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{places}f} ms"


def signed_ms(seconds: float) -> str:
    """`+24.1 ms`, `-6.6 ms`."""
    return f"{'+' if seconds >= 0 else '-'}{ms(abs(seconds))}"


def rate(per_s: float, unit: str = "token") -> str:
    """`120 tok/s`; `80.5 calls/s` of another unit."""
    what = "tok" if unit == "token" else f"{unit}s"
    return f"{per_s:.0f} {what}/s" if per_s >= 100 else f"{per_s:.1f} {what}/s"


def code(name: str, columns: int = NAME_COLUMNS) -> str:
    """A kernel's name as code, which nothing in it can end."""
    return tables.code(shortened(name, columns))
