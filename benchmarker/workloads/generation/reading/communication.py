"""How long several GPUs that share a model speak with each other, from the profile of the first."""

from __future__ import annotations

from benchmarker.core.formatting import percent
from benchmarker.explain.sentence_numbers import ms
from benchmarker.explain.values import Phase
from benchmarker.profiling.categories import category
from benchmarker.schema.profile import Profile


def communication(profile: Profile, phase: Phase, *, total_s: float) -> tuple[str, ...]:
    """A sentence on the communication of a token; none where no kernel is for it.

    Args:
        phase: Of the tokens of the profile.
        total_s: Seconds a token without the profiler.
    """
    kernels = [kernel for kernel in profile.kernels if category(kernel.name) == "communication"]
    times = [kernel.sections["decode"] for kernel in kernels if "decode" in kernel.sections]
    if not (times and phase.is_decode):
        return ()
    busy_s = sum(time.total_s for time in times) / phase.tokens
    alone_s = phase.categories.get("communication", 0.0)
    alone = f", {ms(alone_s)} of it while nothing else runs" if phase.by == "device" else ""
    return (
        f"communication takes {ms(busy_s)} of a token, {percent(busy_s / total_s)} of its time without the profiler"
        f"{alone}; the first GPU's waiting for the others is in it",
    )
