"""Warm-up and timed repeats on steps with given latencies."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from benchmarker.measure.repeat import measure, warm_up
from benchmarker.workloads.generation.record import GenerationSample
from tests.fakes import FakeDevice, Timeline


def test_warm_up_stops_at_the_minimum_if_three_agree() -> None:
    assert len(warm_up(Timeline([9.0, 1.0, 1.01, 1.0]), at_least=4, limit=10)) == 4


def test_warm_up_continues_until_three_runs_agree_within_2_percent() -> None:
    latencies = [s.latency_s for s in warm_up(Timeline([30.0, 2.0, 1.5, 1.0, 1.0, 1.01]), at_least=3, limit=10)]
    assert latencies == [30.0, 2.0, 1.5, 1.0, 1.0, 1.01]


def test_warm_up_stops_at_the_limit_with_a_flag() -> None:
    unstable = Timeline([1.0, 2.0] * 50)
    measured = measure(unstable, FakeDevice(), warmup=3, warmup_limit=10, runs=2)
    assert len(measured.warmup) == 10
    assert measured.flags == ("unstable_warmup",)


def test_warm_up_requires_a_stable_ttft_if_it_is_timed() -> None:
    ttfts_s = iter([0.5, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1])

    def step() -> GenerationSample:
        return GenerationSample(latency_s=1.0, ttft_s=next(ttfts_s), new_tokens=10)

    def times(sample: GenerationSample) -> tuple[float, ...]:
        return sample.latency_s, sample.ttft_s or 0.0

    assert len(warm_up(step, at_least=3, limit=10, times=times)) == 6
    ttfts_s = iter([0.1, 0.2] * 10)
    assert measure(step, FakeDevice(), warmup=3, warmup_limit=8, runs=2, times=times).flags == ("unstable_ttft",)


def test_warm_up_limit_does_not_undercut_the_minimum() -> None:
    assert len(warm_up(Timeline([1.0, 2.0] * 50), at_least=3, limit=4)) == 4
    assert len(warm_up(Timeline([1.0, 2.0] * 50), at_least=6, limit=4)) == 6


def test_samples_are_all_timed_repeats_without_warm_up() -> None:
    measured = measure(Timeline([5.0, 1.0, 1.0, 1.0, 3.0, 1.0]), FakeDevice(), warmup=4, warmup_limit=10, runs=3)
    assert [s.latency_s for s in measured.samples] == [3.0, 1.0, 1.0]


def test_timed_at_spans_the_timed_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Timeline([10.0])
    # The span includes work of the host between repeats, such as printing.
    monkeypatch.setattr("benchmarker.measure.repeat.time", SimpleNamespace(time=lambda: 1000.0 + 15.0 * step.repeats))
    measured = measure(step, FakeDevice(), warmup=3, warmup_limit=10, runs=2)
    assert measured.timed_at == (1045.0, 1075.0)


def test_cell_has_the_maximum_of_the_peaks_per_repeat() -> None:
    device = FakeDevice()

    def grow(number: int, sample: GenerationSample) -> None:
        device.peak_bytes += 1

    measured = measure(Timeline([1.0]), device, warmup=3, warmup_limit=10, runs=3, after_each=grow)
    assert [s.peak_allocated_bytes for s in measured.samples] == [7, 8, 9]
    assert (measured.memory.peak_allocated_bytes, measured.memory.peak_reserved_bytes) == (9, 18)
    assert device.calls == ["release"] + ["reset_peak", "peak"] * 3


def test_garbage_collection_is_disabled_only_while_timing() -> None:
    collecting: list[bool] = []

    class Watcher(Timeline):
        def __call__(self) -> GenerationSample:
            collecting.append(gc.isenabled())
            return super().__call__()

    measure(Watcher([1.0]), FakeDevice(), warmup=3, warmup_limit=10, runs=2)
    assert collecting == [True, True, True, False, False]
    assert gc.isenabled()


def test_guard_surrounds_only_the_timed_repeats() -> None:
    inside: list[int] = []
    step = Timeline([1.0])

    @contextmanager
    def guard() -> Iterator[None]:
        inside.append(step.repeats)
        yield
        inside.append(step.repeats)

    measure(step, FakeDevice(), warmup=3, warmup_limit=10, runs=5, timed=guard)
    assert inside == [3, 8]
