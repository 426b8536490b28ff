"""First process of a sweep on a host: `python -m benchmarker.sweep.prepare_host DEVICE [JOB ...]`.

The environment (device, driver, versions) decides whether a saved cell may be reused. Only torch can determine the
device, and the sweep itself does not import torch. With jobs, the process also prepares their checkpoints, so that no
round includes a download or a quantization.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen

from pydantic import ValidationError

from benchmarker.core.console import Terminal, one_line_errors, quiet_libraries
from benchmarker.core.errors import BenchmarkerError, DeviceError
from benchmarker.core.process import PARENT, end_with_parent
from benchmarker.execution.jobs import read_job_file, write_job
from benchmarker.schema.job import Job
from benchmarker.schema.record import Environment
from benchmarker.schema.registry import workload_of

LIMIT_S = 300.0
"""Time limit without jobs: the first import of torch from a cold network disk takes minutes."""
PREPARE_HOST = (sys.executable, "-m", "benchmarker.sweep.prepare_host")


def prepare_host(
    device: str,
    jobs: Sequence[Job] = (),
    *,
    command: Sequence[str] = PREPARE_HOST,
    variables: Mapping[str, str] | None = None,
    print_line: Callable[[str], None] = lambda line: None,
) -> Environment:
    """Prepare the jobs' checkpoints in a new process, and return the environment of its device; raises DeviceError."""
    last, environment = "", None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        saved = (str(write_job(job.model_copy(update={"origin": None}), folder)) for job in jobs)
        words = [*command, device, *saved]
        env = {**os.environ, **(variables or {}), "PYTHONUNBUFFERED": "1", PARENT: str(os.getpid())}
        process = stack.enter_context(
            Popen(words, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True, errors="replace", env=env)
        )
        assert process.stdout is not None
        timer = threading.Timer(LIMIT_S, process.kill)
        if not jobs:
            timer.start()
        try:
            for line in process.stdout:
                try:
                    environment = Environment.model_validate_json(line)
                except ValidationError:
                    last = line.strip() or last
                    if jobs and not line.startswith("error: "):
                        print_line(f"  {line.rstrip()}")
        except BaseException:
            # SIGTERM, unlike Ctrl-C on a terminal, reaches the sweep alone.
            process.kill()
            raise
        finally:
            timer.cancel()
    if process.returncode == -signal.SIGKILL and timer.finished.is_set() and not jobs:
        raise DeviceError(f"--device {device}: it did not answer within {LIMIT_S:.0f} s")
    if process.returncode or environment is None:
        raise DeviceError(last.removeprefix("error: ") or f"the first process ended with {process.returncode}")
    return environment


def main() -> None:
    """Prepare the checkpoints and print the environment as JSON. If one fails, the variant's run reports it."""
    end_with_parent()
    with one_line_errors():
        from benchmarker.hardware.device import find_device
        from benchmarker.hardware.read_environment import environment

        jobs = [read_job_file(Path(path)) for path in sys.argv[2:]]
        if jobs:
            workload_of(jobs[0].workload).look_for(jobs[0])
        with quiet_libraries(verbose=False) as streams:
            device = find_device(sys.argv[1])
            terminal = Terminal(streams=streams)
            for job in jobs:
                try:
                    workload_of(job.workload).prepare(job, device, terminal)
                except BenchmarkerError as error:
                    terminal.line(f"{job.variant.name}: not prepared: {error}")
            facts = environment(device)
        print(facts.model_dump_json(), flush=True)


if __name__ == "__main__":
    main()
