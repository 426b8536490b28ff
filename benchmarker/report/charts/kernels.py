"""Where the device's time goes, by what kernels are for: milliseconds of each category."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from benchmarker.profiling.categories import CATEGORIES, seconds_by_category
from benchmarker.report.charts.stacked import stacked
from benchmarker.report.charts.style import Chart, Ink, label
from benchmarker.schema.profile import Profile
from benchmarker.schema.record import RunRecord


def profile_of(records: Sequence[RunRecord]) -> Profile | None:
    """The variant's profile: one of its processes has it."""
    return next((record.profile for record in records if record.profile), None)


def once(profile: Any) -> int:  # noqa: ARG001
    """A profile of one call is counted once."""
    return 1


def profiled_call(profiles: Sequence[Any]) -> str:  # noqa: ARG001
    """What the profiles are of."""
    return "From one profiled call of each variant, outside the timed runs."


def kernels_chart(
    members: Mapping[str, Sequence[RunRecord]],
    *,
    count: Callable[[Any], int] = once,
    per: str = "ms per call",
    origin: Callable[[Sequence[Any]], str] = profiled_call,
) -> Chart | None:
    """Stacked bars, one a variant.

    Args:
        members: Each variant's records.
        count: How many units, such as tokens, a profile is of: its time is divided by them.
        per: The unit of the horizontal axis.
        origin: What the profiles are of, in a sentence.
    """
    profiles = {name: profile for name, records in members.items() if (profile := profile_of(records))}
    if not profiles:
        return None
    spent = {name: _milliseconds(profile, count(profile)) for name, profile in profiles.items()}
    missing = [label(name) for name in members if name not in profiles]
    used = [category for category in CATEGORIES if any(parts.get(category) for parts in spent.values())]

    def draw(ink: Ink) -> Figure:
        what = _what(list(profiles.values()))
        return stacked(spent, used, ink, horizontal=f"{what}, {per}")

    return Chart(
        "kernels",
        "What the time is spent on",
        " ".join([origin(list(profiles.values())), *_gaps(list(profiles.values()))])
        + (f" Without a profile: {', '.join(missing)}." if missing else ""),
        draw,
    )


def _milliseconds(profile: Profile, count: int) -> dict[str, float]:
    """Milliseconds of one unit by category of kernel, of a profile of `count` units."""
    spent = seconds_by_category((kernel.name, kernel.total_s) for kernel in profile.kernels)
    return {category: 1e3 * spent_s / count for category, spent_s in spent.items()}


def _what(profiles: Sequence[Profile]) -> str:
    return "operator time" if all(profile.by == "cpu" for profile in profiles) else "kernel time"


def _gaps(profiles: Sequence[Profile]) -> list[str]:
    on_device = any(profile.by == "device" for profile in profiles)
    return ["Time in which no kernel ran is not in the bars."] if on_device else []
