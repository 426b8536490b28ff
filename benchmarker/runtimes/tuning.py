"""Inductor's tuning, made to time kernels and not the host that launches them.

It times each candidate between two events, and before each time it overwrites memory as large as the device's last
cache, so that the candidate finds nothing there. On an H100 that takes less time than the host needs to launch the
candidate: the device has nothing to do when the first event comes, and what is measured is the launch, which on a busy
host varies by more than the candidates differ. Overwriting more gives the host its lead back. Triton's own `do_bench`
overwrites as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

OVERWRITTEN_BYTES = 256 * 2**20
"""About 90 us of an H100's time, and 30 of a host's to launch a kernel between two events."""
TIMES = {"memory_warmup_iters": 5, "benchmark_iters": 40}
"""Instead of 100 each: what is overwritten now takes five times as long, and setting up no longer than before."""


@contextmanager
def kernels_timed_alone() -> Iterator[None]:
    """Surrounds what may tune. Where torch times in another way than this knows, it is left to it."""
    from torch._inductor.runtime import benchmarking

    timer: Any = benchmarking.benchmarker
    if not isinstance(timer, benchmarking.InductorBenchmarker):
        yield
        return
    changed = {
        "L2_cache_size": OVERWRITTEN_BYTES,
        "benchmark_gpu": partial(timer.benchmark_gpu, **TIMES),
    }
    vars(timer).update(changed)
    try:
        yield
    finally:
        for name in changed:
            vars(timer).pop(name, None)
