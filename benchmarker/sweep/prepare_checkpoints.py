"""Make the checkpoints that jobs need: `python -m benchmarker.sweep.prepare_checkpoints job-a.json job-b.json`.

Done once a host and before any round, so that no round pays for a download or for quantizing. The model's commit on
the hub, where it has one, is left in a file beside the jobs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarker.core.console import Terminal, one_line_errors, quiet_libraries
from benchmarker.core.errors import BenchmarkerError
from benchmarker.core.process import end_with_parent
from benchmarker.execution.job_file import read_job_file
from benchmarker.hardware.device import find_device
from benchmarker.schema.registry import workload_of

COMMIT = "commit"
"""File with the hub commit."""


def main() -> None:
    """Prepare one job after another; what fails is said, and will be a failure of the variant's own run."""
    end_with_parent()
    paths = [Path(word) for word in sys.argv[1:]]
    with one_line_errors(), quiet_libraries(verbose=False) as streams:
        jobs = [read_job_file(path) for path in paths]
        if commit := workload_of(jobs[0].workload).look_for(jobs[0]):
            (paths[0].parent / COMMIT).write_text(commit)
        terminal = Terminal(streams=streams)
        for job in jobs:
            try:
                workload_of(job.workload).prepare(job, find_device(job.device), terminal)
            except BenchmarkerError as error:
                terminal.line(f"{job.variant.name}: not prepared: {error}")


if __name__ == "__main__":
    main()
