"""Runs of Python programs in Triton's interpreter, which executes kernels on any machine."""

import os
import subprocess
import sys


def run_in_interpreter(program: str) -> None:
    """Run a program in a new process, because Triton reads the variable at import.

    Raises:
        AssertionError: The program failed. The message is the end of its output.
    """
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
