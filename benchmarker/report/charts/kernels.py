"""Where the device's time goes, by what kernels are for: milliseconds of each category per generated token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from benchmarker.profiling.kernels import CATEGORIES, Category, shares
from benchmarker.record import Profile, RunRecord
from benchmarker.report.charts.style import HATCHES, Chart, Ink, figure, label


def profile_of(records: Sequence[RunRecord]) -> Profile | None:
    """The variant's profile: one of its processes has it."""
    return next((record.profile for record in records if record.profile), None)


def seconds_by_category(profile: Profile) -> dict[Category, float]:
    """Of the whole profiled generation; a fused kernel's time is split over what is fused into it."""
    totals: dict[Category, float] = {}
    for kernel in profile.kernels:
        for category, share in shares(kernel.name).items():
            totals[category] = totals.get(category, 0.0) + share * kernel.total_s
    return {category: totals[category] for category in CATEGORIES if totals.get(category)}


def kernels_chart(members: Mapping[str, Sequence[RunRecord]]) -> Chart | None:
    """Stacked bars, one a variant.

    Args:
        members: Each variant's records.
    """
    profiles = {name: found for name, records in members.items() if (found := profile_of(records))}
    if not profiles:
        return None
    spent = {name: _ms_per_token(profile) for name, profile in profiles.items()}
    missing = [label(name) for name in members if name not in profiles]
    used = [category for category in CATEGORIES if any(category in parts for parts in spent.values())]

    def draw(ink: Ink) -> Figure:
        drawn, (axes,) = figure(0.75 + 0.36 * len(spent) + 0.17 * ((len(used) + 2) // 3))
        left = dict.fromkeys(spent, 0.0)
        for index, category in enumerate(used):
            axes.barh(
                range(len(spent)),
                [parts.get(category, 0.0) for parts in spent.values()],
                left=list(left.values()),
                height=0.62,
                color=ink.colour(index),
                edgecolor=ink.paper,
                linewidth=0.7,
                hatch=HATCHES[index // len(ink.series)],
                label=category,
            )
            left = {name: left[name] + parts.get(category, 0.0) for name, parts in spent.items()}
        axes.set_yticks(range(len(spent)), [label(name) for name in spent])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"{_what(list(profiles.values()))}, ms per generated token")
        drawn.legend(loc="outside lower left", ncols=3, handlelength=1, handletextpad=0.4, columnspacing=1)
        return drawn

    return Chart(
        "kernels",
        "What the time is spent on",
        " ".join([_origin(list(profiles.values())), *_gaps(list(profiles.values()))])
        + (f" Without a profile: {', '.join(missing)}." if missing else ""),
        draw,
    )


def _ms_per_token(profile: Profile) -> dict[Category, float]:
    tokens = profile.new_tokens * profile.batch_size
    return {category: 1e3 * spent_s / tokens for category, spent_s in seconds_by_category(profile).items()}


def _what(profiles: Sequence[Profile]) -> str:
    return "operator time" if all(one.by == "cpu" for one in profiles) else "kernel time"


def _origin(profiles: Sequence[Profile]) -> str:
    first = profiles[0]
    shapes = {(one.prompt_tokens, one.new_tokens, one.batch_size) for one in profiles}
    where = f": prompt {first.prompt_tokens}, {first.new_tokens} new tokens" if len(shapes) == 1 else ""
    return f"From one profiled generation of each variant{where}, prefill included, outside the timed runs."


def _gaps(profiles: Sequence[Profile]) -> list[str]:
    on_device = any(one.by == "device" for one in profiles)
    return ["Time in which no kernel ran is not in the bars."] if on_device else []
