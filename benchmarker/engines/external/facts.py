"""How far an engine's own times are from our clock's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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
