"""What is asked of text generation and what its records hold, in words."""

from __future__ import annotations

from benchmarker.schema.workload import Axis
from benchmarker.workloads.generation.record import GenerationProfile

AXES = (
    Axis(
        "prompt_tokens",
        "prompt",
        lambda tokens: f"prompt of {tokens}",
        size=lambda point: point.prompt_tokens or len(point.prompt or ""),
    ),
    Axis("new_tokens", "new", lambda tokens: f"{tokens} new tokens"),
    Axis("batch_size", "batch", lambda sequences: f"batch of {sequences}"),
    Axis("depth", "depth", lambda tokens: f"after {tokens} in the cache"),
)


def profiled_words(profile: GenerationProfile) -> str:
    """`generation, prompt of 26, 32 new tokens`."""
    batch = f", batch of {profile.batch_size}" if profile.batch_size > 1 else ""
    return f"generation, prompt of {profile.prompt_tokens}, {profile.new_tokens} new tokens{batch}"
