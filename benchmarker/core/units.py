"""Numbers as people read them. Memory is in GiB (2^30 bytes) everywhere, and says so; a missing value is a dash."""

from __future__ import annotations

GIB = 2**30
MIB = 2**20
MISSING = "–"


def gib(size_bytes: float | None) -> str:
    """Bytes as `7.59 GiB`, small sizes as `3.2 MiB`."""
    if size_bytes is None:
        return MISSING
    if size_bytes < GIB / 20:
        return f"{size_bytes / 2**20:.1f} MiB"
    return f"{size_bytes / GIB:.2f} GiB"


def seconds(duration_s: float | None) -> str:
    """Seconds with a unit that keeps three or four digits: `1.3832 s`, `27.31 ms`, `4.10 us`."""
    if duration_s is None:
        return MISSING
    if duration_s >= 100:
        return f"{duration_s:.0f} s"
    if duration_s >= 1:
        return f"{duration_s:.4f} s" if duration_s < 10 else f"{duration_s:.2f} s"
    if duration_s >= 1e-3:
        return f"{duration_s * 1e3:.2f} ms"
    return f"{duration_s * 1e6:.2f} us"


def significant(number: float | None, digits: int = 4) -> str:
    """A plain decimal with that many significant digits, never in exponent form: `36.15`, `1204`, `0.03120`."""
    if number is None:
        return MISSING
    if number == 0:
        return "0"
    whole = len(str(int(abs(number)))) if abs(number) >= 1 else 0
    if whole >= digits:
        return f"{number:.0f}"
    if whole:
        return f"{number:.{digits - whole}f}"
    return f"{number:.{digits}g}" if abs(number) >= 1e-4 else f"{number:.2e}"
