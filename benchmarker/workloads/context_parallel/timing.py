"""One timed repeat of all ranks: the time of the slowest counts, and all are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarker.measure.repeat import calls_needed
from benchmarker.workloads.context_parallel.record import ContextParallelSample


class ContextParallelStep:
    """One cell's repeat on all ranks."""

    def __init__(self, call: Callable[..., list[Any]], *, is_backward: bool) -> None:
        self._call = call
        self._is_backward = is_backward
        self._calls: dict[str, int] = {}

    def __call__(self) -> ContextParallelSample:
        if not self._is_backward:
            return self._sample(self.timed("forward"), "forward")
        answers = self.timed("forward_backward")
        sample = self._sample(answers, "forward_backward")
        forward_s = slowest(self.timed("forward"))
        backward_s = sample.latency_s - forward_s
        if backward_s <= 0:
            return sample
        return sample.model_copy(update={"parts_s": {"forward": forward_s, "backward": backward_s}})

    def timed(self, work: str, method: str = "times") -> list[dict[str, Any]]:
        """Each rank's times of calls in a row, as many as take 20 ms."""
        if work not in self._calls:
            self._calls[work] = calls_needed(lambda calls: slowest(self._once("times", work, calls)) * calls)
        return self._once(method, work, self._calls[work])

    def _once(self, method: str, work: str, calls: int) -> list[dict[str, Any]]:
        return self._call(method, calls=calls, work=work)

    def _sample(self, answers: list[dict[str, Any]], work: str) -> ContextParallelSample:
        events = [answer["event_s"] for answer in answers]
        peaks = [answer["peak_bytes"] for answer in answers]
        return ContextParallelSample(
            latency_s=slowest(answers),
            calls=self._calls[work],
            event_s=None if None in events else max(events),
            ranks_s=tuple(answer["host_s"] for answer in answers),
            rank_peak_bytes=() if None in peaks else tuple(peaks),
        )


def slowest(answers: list[dict[str, Any]]) -> float:
    """Seconds of one call on the slowest rank."""
    return max(float(answer["host_s"]) for answer in answers)
