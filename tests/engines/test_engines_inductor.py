"""Test the settings of inductor's autotuning timer and the kernel cache folder, without a device."""

from __future__ import annotations

import inspect
import os
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch
from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures
from torch._inductor.runtime import benchmarking
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.virtualized import V

from benchmarker.engines.decoders.compile import REPEATS, TIMES_THE_CACHE, kernels_timed_alone, short_sums
from benchmarker.engines.decoders.native import keep_kernels_beside_inductors
from benchmarker.hardware.device import CpuDevice


class Timer(benchmarking.InductorBenchmarker):
    """Timer that returns its arguments instead of a time."""

    def benchmark_gpu(self, *args: Any, **kwargs: Any) -> Any:
        return {"overwritten": self.L2_cache_size, **kwargs}

    @cached_property
    def L2_cache_size(self) -> int:
        return 50


def time_kernel(timer: Timer) -> Any:
    """Call the timer as inductor does."""
    return timer.benchmark_gpu(lambda: None, rep=40)


def test_kernel_timing_enlarges_the_cache_flush_and_restores_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timer = Timer()
    monkeypatch.setattr(benchmarking, "benchmarker", timer)
    before = time_kernel(timer)
    with kernels_timed_alone():
        inside = time_kernel(timer)
    assert inside == {**before, "overwritten": 50 * TIMES_THE_CACHE, **REPEATS}
    assert time_kernel(timer) == before


def test_installed_torch_accepts_the_patched_timer_settings() -> None:
    assert isinstance(inspect.getattr_static(benchmarking.InductorBenchmarker, "L2_cache_size"), cached_property)
    assert set(REPEATS) <= set(inspect.signature(benchmarking.InductorBenchmarker.benchmark_gpu).parameters)


def test_other_timers_are_not_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = benchmarking.TritonBenchmarker()
    monkeypatch.setattr(benchmarking, "benchmarker", timer)
    with kernels_timed_alone():
        assert "benchmark_gpu" not in vars(timer)


def test_triton_cache_is_in_the_inductor_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.delenv("TRITON_CACHE_DIR")
    keep_kernels_beside_inductors(CpuDevice())
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton" / "0")
    monkeypatch.setenv("TRITON_CACHE_DIR", "a-users-own")
    keep_kernels_beside_inductors(CpuDevice())
    assert os.environ["TRITON_CACHE_DIR"] == "a-users-own"


SUMS = {
    (64, ReductionHint.DEFAULT, False): (True, True),
    (128, ReductionHint.DEFAULT, False): (False, True),
    (2560, ReductionHint.DEFAULT, False): (False, False),
    # Inductor's limit is larger if rows are contiguous.
    (1024, ReductionHint.INNER, False): (True, True),
    # The reduction is split over programs.
    (128, ReductionHint.DEFAULT, True): (False, False),
}
"""(Length, inductor's hint, is split over programs) of a reduction: is persistent by default, and in `short_sums`."""


@pytest.mark.parametrize("case", SUMS, ids=str)
def test_short_sums_makes_reductions_over_a_head_persistent(
    case: tuple[int, ReductionHint, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    (length, hint, is_split), (by_default, inside) = case, SUMS[case]
    monkeypatch.setattr(SIMDKernelFeatures, "get_reduction_hint", lambda self: hint)
    with V.set_graph_handler(SimpleNamespace(sizevars=SizeVarAllocator())):
        heads = SIMDKernelFeatures([], sympy.Integer(512 * 32), sympy.Integer(length))
        assert V.choices.should_use_persistent_reduction(heads, is_split) == by_default
        with short_sums():
            assert V.choices.should_use_persistent_reduction(heads, is_split) == inside
        assert V.choices.should_use_persistent_reduction(heads, is_split) == by_default


def test_short_sums_changes_torchs_compilation_cache_key() -> None:
    before = torch.compiler.config.cache_key_tag
    with short_sums():
        assert torch.compiler.config.cache_key_tag.startswith(before)
        assert torch.compiler.config.cache_key_tag != before
    assert torch.compiler.config.cache_key_tag == before
