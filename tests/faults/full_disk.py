"""Run a sweep whose results are on an almost full disk: `python -m tests.faults.full_disk FOLDER_ON_THAT_DISK`."""

import sys
from pathlib import Path

from benchmarker.core.errors import ResultsError
from tests.faults.stage import Stage


def main() -> None:
    disk = Path(sys.argv[1])
    stage = Stage(disk.parent / "home", variants=["a"], rounds=40)
    try:
        stage.sweep(output=disk)
    except ResultsError as error:
        print(stage.printed)
        print(f"error: {error}")
        print(f"whole records: {len([path for path in disk.glob('a-*.json') if path.read_text().endswith('}')])}")


if __name__ == "__main__":
    main()
