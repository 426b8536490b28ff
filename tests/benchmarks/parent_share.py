"""Measure the CPU time of a sweep's parent process while a child runs, as a share of one core.

The child is a stand-in that sleeps, writes its record and prints a line now and then, so all CPU time is the parent's.
The goal is less than 2 % of a core.

    python -m tests.benchmarks.parent_share --seconds 30            without a GPU
    python -m tests.benchmarks.parent_share --seconds 30 --board    reading this machine's GPU ten times a second
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import psutil

from benchmarker.schema.record import Environment
from benchmarker.sweep.prepare_host import prepare_host
from tests import records
from tests.faults.stage import Stage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--board", action="store_true", help="watch the GPU that torch finds")
    options = parser.parse_args()
    environment = prepare_host("auto") if options.board else records.environment()
    with tempfile.TemporaryDirectory() as folder:
        # The first sweep is the warm-up; the second differs only in the child's sleep.
        shares = [
            _measure(Path(folder) / str(number), seconds, environment)
            for number, seconds in enumerate((1.0, options.seconds))
        ]
    busy_s = shares[1][0] - shares[0][0]
    wall_s = shares[1][1] - shares[0][1]
    print(
        f"parent: {busy_s:.3f} s of processor time in {wall_s:.1f} s more of a child at work: "
        f"{100 * busy_s / wall_s:.2f} % of a core ({psutil.cpu_count()} cores)"
    )


def _measure(home: Path, seconds: float, environment: Environment) -> tuple[float, float]:
    """Return the CPU time of this process and the wall time of a sweep whose child runs for a number of seconds."""
    work = {"variant": "a", "at": "cell 1", "do": "work", "seconds": seconds}
    stage = Stage(home, variants=["a"], faults=[work], environment=environment)
    before, started = psutil.Process().cpu_times(), time.perf_counter()
    assert stage.sweep(cell_timeout_s=2 * seconds + 20) == []
    after = psutil.Process().cpu_times()
    return after.user + after.system - before.user - before.system, time.perf_counter() - started


if __name__ == "__main__":
    main()
