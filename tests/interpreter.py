"""A Python program in Triton's interpreter, which runs kernels on any machine."""

import os
import subprocess
import sys


def run_in_interpreter(program: str) -> None:
    """Run a program in a process of its own, since Triton reads the variable when it is imported.

    Raises:
        AssertionError: The program failed; the end of what it wrote.
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
