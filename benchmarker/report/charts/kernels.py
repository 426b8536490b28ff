"""Where the device's time goes, by what kernels are for: milliseconds of each category per generated token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from benchmarker.profiling.categories import CATEGORIES, seconds_by_category
from benchmarker.report.charts.stacked import stacked
from benchmarker.report.charts.style import Chart, Ink, label
from benchmarker.workloads.generation.record import GenerationProfile, GenerationRecord


def profile_of(records: Sequence[GenerationRecord]) -> GenerationProfile | None:
    """The variant's profile: one of its processes has it."""
    return next((record.profile for record in records if record.profile), None)


def kernels_chart(members: Mapping[str, Sequence[GenerationRecord]]) -> Chart | None:
    """Stacked bars, one a variant.

    Args:
        members: Each variant's records.
    """
    profiles = {name: found for name, records in members.items() if (found := profile_of(records))}
    if not profiles:
        return None
    spent = {name: _ms_per_token(profile) for name, profile in profiles.items()}
    missing = [label(name) for name in members if name not in profiles]
    used = [category for category in CATEGORIES if any(parts.get(category) for parts in spent.values())]

    def draw(ink: Ink) -> Figure:
        what = _what(list(profiles.values()))
        return stacked(spent, used, ink, horizontal=f"{what}, ms per generated token")

    return Chart(
        "kernels",
        "What the time is spent on",
        " ".join([_origin(list(profiles.values())), *_gaps(list(profiles.values()))])
        + (f" Without a profile: {', '.join(missing)}." if missing else ""),
        draw,
    )


def _ms_per_token(profile: GenerationProfile) -> dict[str, float]:
    tokens = profile.new_tokens * profile.batch_size
    spent = seconds_by_category((kernel.name, kernel.total_s) for kernel in profile.kernels)
    return {category: 1e3 * spent_s / tokens for category, spent_s in spent.items()}


def _what(profiles: Sequence[GenerationProfile]) -> str:
    return "operator time" if all(one.by == "cpu" for one in profiles) else "kernel time"


def _origin(profiles: Sequence[GenerationProfile]) -> str:
    first = profiles[0]
    shapes = {(one.prompt_tokens, one.new_tokens, one.batch_size) for one in profiles}
    where = f": prompt {first.prompt_tokens}, {first.new_tokens} new tokens" if len(shapes) == 1 else ""
    return f"From one profiled generation of each variant{where}, prefill included, outside the timed runs."


def _gaps(profiles: Sequence[GenerationProfile]) -> list[str]:
    on_device = any(one.by == "device" for one in profiles)
    return ["Time in which no kernel ran is not in the bars."] if on_device else []
