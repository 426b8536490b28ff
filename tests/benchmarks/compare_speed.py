"""Time `benchmarker compare` for many records; the limit is 2 s for 500.

    python -m tests.benchmarks.compare_speed [RECORDS]

Each record has a realistic size: four cells with five runs and three warm-ups, and a profile of 150 kernels.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarker.schema.record import Kernel
from benchmarker.schema.record_io import write_json
from benchmarker.workloads.generation.record import GenerationRecord
from tests.records import cell, profile, record, sample

LIMIT_S = 2.0
ROUNDS = 10


def records(count: int) -> Iterator[GenerationRecord]:
    """Yield the records of a sweep with ten rounds and as many variants as needed."""
    kernels = tuple(Kernel(name=f"kernel_{index}" * 8, calls=100, total_s=0.5 / 150) for index in range(150))
    for index in range(count):
        variant, number = divmod(index, ROUNDS)
        cells = [
            cell([1.4 + variant / 10 + number / 500] * 5, prompt_tokens=prompt, new_tokens=new).model_copy(
                update={"warmup": (sample(),) * 3}
            )
            for prompt in (3, 26)
            for new in (50, 100)
        ]
        quant = "int8" if variant else "fp16"
        yield record(quant, *cells, name=f"{quant} {variant}", round_number=number, profile=profile(kernels=kernels))


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with tempfile.TemporaryDirectory() as folder:
        for index, one in enumerate(records(count)):
            write_json(one, Path(folder, f"{index:04}.json"))
        size_bytes = sum(path.stat().st_size for path in Path(folder).iterdir())
        times = [_timed(folder) for _ in range(3)]
    print(f"{count} records, {size_bytes / 2**20:.1f} MiB: {min(times):.2f} s (best of 3), limit {LIMIT_S} s")
    return int(min(times) > LIMIT_S)


def _timed(folder: str) -> float:
    start_s = time.perf_counter()
    subprocess.run([sys.executable, "-m", "benchmarker", "compare", folder], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start_s


if __name__ == "__main__":
    sys.exit(main())
