"""What does the parent of a sweep take away from its child? Its share of one core while a child runs.

The child is a fake that sleeps, writes its record and prints a line now and then, as a measuring one does, so that all
processor time is the parent's own. Less than 2 % of a core is the aim.

    python -m tests.benchmarks.parent_share --seconds 30            without a board
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
    given = parser.parse_args()
    environment = prepare_host("auto") if given.board else records.environment()
    with tempfile.TemporaryDirectory() as folder:
        # The first sweep warms everything up; the second differs in the sleep alone.
        shares = [
            _measure(Path(folder) / str(number), seconds, environment)
            for number, seconds in enumerate((1.0, given.seconds))
        ]
    busy_s = shares[1][0] - shares[0][0]
    wall_s = shares[1][1] - shares[0][1]
    print(
        f"parent: {busy_s:.3f} s of processor time in {wall_s:.1f} s more of a child at work: "
        f"{100 * busy_s / wall_s:.2f} % of a core ({psutil.cpu_count()} cores)"
    )


def _measure(home: Path, seconds: float, environment: Environment) -> tuple[float, float]:
    """Processor time of this process and wall time, of one sweep with a child that works so long."""
    work = {"variant": "a", "at": "cell 1", "do": "work", "seconds": seconds}
    stage = Stage(home, variants=["a"], faults=[work], environment=environment)
    before, started = psutil.Process().cpu_times(), time.perf_counter()
    assert stage.sweep(cell_timeout_s=2 * seconds + 20) == []
    after = psutil.Process().cpu_times()
    return after.user + after.system - before.user - before.system, time.perf_counter() - started


if __name__ == "__main__":
    main()
