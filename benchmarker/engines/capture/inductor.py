"""Inductor's settings on a GPU, and a change to its tuning that makes it time kernels instead of the host.

Inductor times each candidate between two events, after overwriting memory as large as the last-level cache. On an H100
the overwrite takes less time than the host needs to launch the candidate, so that the measured time is the launch.
Overwriting more memory gives the host enough time. Triton's own `do_bench` overwrites five times an H100's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

ON_GPU = {
    # A GEMV becomes a reduction by inductor, tuned step by step: cuBLAS leaves a third of the bandwidth unused there
    # (205 to 249 tok/s for fp16 on an H100).
    "coordinate_descent_tuning": True,
    # Small independent kernels become one, but not GEMMs: combined, they are tuned as one too, and int8's query, key
    # and value took 19 us instead of 12 (H100).
    "combo_kernels": True,
    "combo_kernels_pointwise_only": True,
    # Short sums need no reduction.
    "unroll_reductions_threshold": 16,
    # Otherwise torch 2.11 times a second block size next to the one that an earlier process chose and kept. If it then
    # chooses the second, sums round differently, and random weights give another text.
    "dynamic_scale_rblock": False,
    # A kernel is launched while the previous one ends (Hopper and newer).
    "triton.enable_pdl": True,
    "triton.unique_kernel_names": True,
}
"""Inductor's settings for a GPU; on a CPU it keeps its defaults."""
BESIDE_OUR_PRODUCTS = ON_GPU | {"coordinate_descent_tuning": False, "max_autotune_pointwise": True}
"""Settings for a model in which inductor compiles only short kernels, and no GEMV.

Candidates are compiled in parallel instead of one after another. Set-up with empty caches for 512 tokens of Qwen3-4B on
one H100 (2026-11-25) took 10 s instead of 29 in fp16, and 14 instead of 41 in GPTQ.
"""
TIMES_THE_CACHE = 5
"""Bytes written before each timing, as a multiple of the cache: 90 us on an H100. A host launches a kernel in 30 us."""
REPEATS = {"memory_warmup_iters": 5, "benchmark_iters": 40}
"""Inductor's default is 100 each. Fewer keep set-up as short as without the larger overwrite."""

SHORT_SUM = 256
"""Maximum length of a sum whose numbers one program of a GPU kernel holds at once: an attention head's."""


@contextmanager
def kernels_timed_alone() -> Iterator[None]:
    """Surround code that may tune. Has no effect if torch does not time with InductorBenchmarker."""
    from torch._inductor.runtime import benchmarking

    timer: Any = benchmarking.benchmarker
    if not isinstance(timer, benchmarking.InductorBenchmarker):
        yield
        return
    changed = {
        "L2_cache_size": TIMES_THE_CACHE * timer.L2_cache_size,
        "benchmark_gpu": partial(timer.benchmark_gpu, **REPEATS),
    }
    attributes = dict(vars(timer))
    vars(timer).update(changed)
    try:
        yield
    finally:
        vars(timer).clear()
        vars(timer).update(attributes)


@contextmanager
def heads_normed_at_once() -> Iterator[None]:
    """Make inductor keep the numbers of a short sum in registers instead of reading them twice.

    By default it does so up to 64 numbers, and up to 1,024 if all rows are contiguous. After the joined GEMM of query,
    key and value, heads are not: their norm in Qwen3-4B at 512 tokens took 20 us instead of 4 (H100, 2026-11-25).
    """
    from torch._inductor.choices import InductorChoices
    from torch._inductor.virtualized import V
    from torch.compiler import config

    class Choices(InductorChoices):
        @staticmethod
        def should_use_persistent_reduction(features: Any, cooperative_reduction: bool) -> bool:
            is_short = V.graph.sizevars.statically_known_leq(features.reduction_numel, SHORT_SUM)
            usual: bool = InductorChoices.should_use_persistent_reduction(features, cooperative_reduction)
            return usual or (bool(is_short) and not cooperative_reduction)

    # torch's caches ignore the handler: the tag separates code that was compiled without it.
    compiler: Any = config
    tag = f"{compiler.cache_key_tag}, sums of {SHORT_SUM} at once"
    with V.set_choices_handler(Choices()), compiler.patch(cache_key_tag=tag):
        yield


def known_settings(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that the installed torch's inductor has."""
    from torch._inductor import config

    has: dict[str, Any] = config.get_config_copy()
    settings = {name: value for name, value in wanted.items() if name in has}
    if "combo_kernels_pointwise_only" not in settings:
        settings.pop("combo_kernels", None)
    return settings
