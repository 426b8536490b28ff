"""Run a sweep on Ray that hangs in its third round until it is killed: `python -m tests.faults.ray_driver HOME`."""

import sys
from pathlib import Path

from tests.faults.stage import Stage


def main() -> None:
    hang = {"variant": "a", "at": "cell 1", "do": "hang", "round": 2, "times": 1}
    Stage(Path(sys.argv[1]), rounds=3, variants=["a"], faults=[hang]).sweep(places="ray")


if __name__ == "__main__":
    main()
