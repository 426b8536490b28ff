"""Inductor's settings on a GPU, and its tuning, made to time kernels and not the host that launches them.

Inductor times each candidate between two events, and before each time it overwrites memory as large as the device's
last cache, so that the candidate finds nothing there. On an H100 that takes less time than the host needs to launch the
candidate: the device has nothing to do when the first event comes, and what is measured is the launch, which on a busy
host varies by more than the candidates differ. Overwriting more gives the host its lead back. Triton's own `do_bench`
overwrites 256 MiB, an H100's cache five times.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

ON_GPU = {
    # A product with a single row becomes a reduction of inductor's own, tuned step by step: cuBLAS leaves a third of
    # the bandwidth unused there (205 to 249 tok/s for fp16 on an H100).
    "coordinate_descent_tuning": True,
    # Small kernels that do not depend on each other become one. Not products: together they are tuned as one too, and
    # int8's query, key and value took 19 us instead of 12 (H100).
    "combo_kernels": True,
    "combo_kernels_pointwise_only": True,
    # Sums over so few parts need no reduction.
    "unroll_reductions_threshold": 16,
    # Else torch 2.11 times a second block size beside the one that an earlier process chose and kept. Where it then
    # chooses the other, sums round differently, and random weights make another text.
    "dynamic_scale_rblock": False,
    # A kernel is launched while the one before it ends (Hopper and newer).
    "triton.enable_pdl": True,
    "triton.unique_kernel_names": True,
}
"""Inductor's settings for a GPU, as far as this torch knows them; on a CPU its defaults."""
BESIDE_OUR_PRODUCTS = ON_GPU | {"coordinate_descent_tuning": False, "max_autotune_pointwise": True}
"""The same where inductor makes no product of one row itself.

What is left to it are short kernels. Of each, several candidates are compiled side by side and timed. Tuning step by
step compiles one candidate after another. Set up with empty caches for 512 tokens of Qwen3-4B on one H100 (2026-11-25),
fp16 took 10 s in place of 29, and GPTQ 14 in place of 41; for eight such sequences fp16 took 13 s in place of 55. Of a
prompt, inductor's kernels of a layer take 25 us in fp16, and took 27.
"""
TIMES_THE_CACHE = 5
"""How many times the cache's size is written before each timing: about 90 us on an H100, while a host takes 30 us or
more to launch a kernel between two events."""
REPEATS = {"memory_warmup_iters": 5, "benchmark_iters": 40}
"""Instead of 100 each, so that setting up takes no longer than before."""

SHORT_SUM = 256
"""Numbers of a sum that a program of one GPU kernel holds at once: an attention head's."""


@contextmanager
def kernels_timed_alone() -> Iterator[None]:
    """Surrounds what may tune. Where torch times in another way than by InductorBenchmarker, it is left to it."""
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
    """Inside, inductor keeps the numbers of a short sum in registers, and does not read them again to use the sum.

    Left alone, it does so up to 64 numbers, and up to 1,024 where all rows follow one another in memory. The norm of
    Qwen3-4B's query heads at 512 tokens took 4 us on one H100 for a product of their own, where it is read once. In the
    joined product of query, key and value it was read twice, and took 20 us (2026-11-25).
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

    # What was compiled outside is another thing to torch's caches, which do not see a handler.
    compiler: Any = config
    tag = f"{compiler.cache_key_tag}, sums of {SHORT_SUM} at once"
    with V.set_choices_handler(Choices()), compiler.patch(cache_key_tag=tag):
        yield


def known_settings(wanted: dict[str, Any]) -> dict[str, Any]:
    """Those of inductor's settings that the installed torch has."""
    from torch._inductor import config

    has: dict[str, Any] = config.get_config_copy()
    settings = {name: value for name, value in wanted.items() if name in has}
    if "combo_kernels_pointwise_only" not in settings:
        settings.pop("combo_kernels", None)
    return settings
