"""What a record of text generation holds, in words."""

from __future__ import annotations

from benchmarker.workloads.generation.record import GenerationProfile


def profiled_words(profile: GenerationProfile) -> str:
    """`generation, prompt of 26, 32 new tokens`."""
    batch = f", batch of {profile.batch_size}" if profile.batch_size > 1 else ""
    return f"generation, prompt of {profile.prompt_tokens}, {profile.new_tokens} new tokens{batch}"
