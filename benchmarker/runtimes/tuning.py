"""Inductor's tuning, made to time kernels and not the host that launches them.

It times each candidate between two events, and before each time it overwrites memory as large as the device's last
cache, so that the candidate finds nothing there. On an H100 that takes less time than the host needs to launch the
candidate: the device has nothing to do when the first event comes, and what is measured is the launch, which on a busy
host varies by more than the candidates differ. Overwriting more gives the host its lead back. Triton's own `do_bench`
overwrites 256 MiB, an H100's cache five times.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

TIMES_THE_CACHE = 5
"""On an H100 about 90 us, where a host needs 30 or more to launch a kernel between two events."""
REPEATS = {"memory_warmup_iters": 5, "benchmark_iters": 40}
"""Instead of 100 each, so that setting up takes no longer than before."""


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
    own = dict(vars(timer))
    vars(timer).update(changed)
    try:
        yield
    finally:
        vars(timer).clear()
        vars(timer).update(own)
