"""How inductor's tuning is timed, and where kernels are kept; on a CPU nothing is tuned, so that its own timer is asked
without a device."""

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
    """Says how it was asked instead of timing."""

    def benchmark_gpu(self, *args: Any, **kwargs: Any) -> Any:
        return {"overwritten": self.L2_cache_size, **kwargs}

    @cached_property
    def L2_cache_size(self) -> int:
        return 50


def asked(timer: Timer) -> Any:
    """As inductor asks for a kernel's time."""
    return timer.benchmark_gpu(lambda: None, rep=40)


def test_what_is_overwritten_gives_the_host_its_lead_and_afterwards_all_is_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timer = Timer()
    monkeypatch.setattr(benchmarking, "benchmarker", timer)
    before = asked(timer)
    with kernels_timed_alone():
        inside = asked(timer)
    assert inside == {**before, "overwritten": 50 * TIMES_THE_CACHE, **REPEATS}
    assert asked(timer) == before


def test_this_torch_takes_what_it_is_told() -> None:
    assert isinstance(inspect.getattr_static(benchmarking.InductorBenchmarker, "L2_cache_size"), cached_property)
    assert set(REPEATS) <= set(inspect.signature(benchmarking.InductorBenchmarker.benchmark_gpu).parameters)


def test_another_timer_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = benchmarking.TritonBenchmarker()
    monkeypatch.setattr(benchmarking, "benchmarker", timer)
    with kernels_timed_alone():
        assert "benchmark_gpu" not in vars(timer)


def test_our_kernels_are_kept_where_inductor_keeps_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
    # Where inductor knows that rows follow one another, it holds more.
    (1024, ReductionHint.INNER, False): (True, True),
    # Programs share the sum.
    (128, ReductionHint.DEFAULT, True): (False, False),
}
"""Numbers of a sum, what inductor knows of them, and whether programs share it: whether all are held, and inside."""


@pytest.mark.parametrize("case", SUMS, ids=str)
def test_a_program_holds_all_numbers_of_a_heads_sum(
    case: tuple[int, ReductionHint, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    (numbers, hint, shared), (usual, inside) = case, SUMS[case]
    monkeypatch.setattr(SIMDKernelFeatures, "get_reduction_hint", lambda self: hint)
    with V.set_graph_handler(SimpleNamespace(sizevars=SizeVarAllocator())):
        heads = SIMDKernelFeatures([], sympy.Integer(512 * 32), sympy.Integer(numbers))
        assert V.choices.should_use_persistent_reduction(heads, shared) == usual
        with short_sums():
            assert V.choices.should_use_persistent_reduction(heads, shared) == inside
        assert V.choices.should_use_persistent_reduction(heads, shared) == usual


def test_torchs_caches_tell_what_is_compiled_inside_from_what_is_compiled_outside() -> None:
    before = torch.compiler.config.cache_key_tag
    with short_sums():
        assert torch.compiler.config.cache_key_tag.startswith(before)
        assert torch.compiler.config.cache_key_tag != before
    assert torch.compiler.config.cache_key_tag == before
