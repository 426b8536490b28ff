"""What a record says of an engine that runs in a process of its own: values, as the driver gave them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from benchmarker.schema.base import Plain

DISAGREEMENT = 0.02
"""Share by which an engine's own times may differ from our clock's before the row is flagged."""


class ExternalFacts(Plain):
    """Build, settings and proof of what ran. None where the engine does not tell."""

    environment: str
    """Name of the environment; its pins are known by it and by `version`."""
    version: str
    python: str
    commit: str | None = None
    library_sha256: str | None = None
    """Of llama.cpp's library: which build it was, where no commit is known."""
    build: str | None = None
    """What the engine says of its build: backends and instruction sets."""
    settings: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    """What it was opened with."""
    weight_bytes: int | None = None
    weight_bytes_by_type: dict[str, int] = Field(default_factory=dict)
    tensors_by_type: dict[str, int] = Field(default_factory=dict)
    linear_methods: dict[str, int] = Field(default_factory=dict)
    """vLLM's class of each layer's way of multiplying, with how many layers have it."""
    attention: tuple[str, ...] = ()
    kv_cache_bytes: int | None = None
    """Reserved at the start for all requests that may come: not what one generation needs."""
    peak_bytes: int | None = None
    """Most host memory that the engine's process held."""
    fallback: str | None = None
    """Tensors that the form's name does not cover."""
    choosing_share: float | None = None
    """Share of the decode time that went into choosing tokens on the host, in the last generation."""
    disagreement: float | None = None
    """Share by which the engine's own TTFT or seconds a token, whichever is worse, differ from our clock's: the median
    over all generations. None where it gives no times of its own."""

    @property
    def times_disagree(self) -> bool:
        """Whether the row needs a flag."""
        return self.disagreement is not None and self.disagreement > DISAGREEMENT


def disagreement(answer: dict[str, Any]) -> float | None:
    """Largest relative difference between an engine's own times and our clock's readings around it.

    Args:
        answer: A driver's answer to `generate`: our readings, and `engine_times` with `ttft_s` and `tpot_s` for each
            sequence.
    """
    steps = len(answer["tokens"][0]) - 1
    ttft_s = (answer["first_ns"] - answer["start_ns"]) / 1e9
    tpot_s = (answer["last_ns"] - answer["first_ns"]) / 1e9 / steps if steps else None
    pairs: Sequence[tuple[float | None, float | None]] = [
        pair
        for times in answer.get("engine_times") or []
        if times is not None
        for pair in ((times["ttft_s"], ttft_s), (times["tpot_s"], tpot_s))
    ]
    differences = [abs(engine_s - our_s) / our_s for engine_s, our_s in pairs if engine_s is not None and our_s]
    return max(differences, default=None)
