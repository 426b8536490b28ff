"""What the children will find, looked up by a process of its own: `python -m benchmarker.sweep.probe auto`.

Whether a saved cell may be reused depends on the device, its driver and the versions; torch knows the first of them,
and the parent does without torch.
"""

from __future__ import annotations

import subprocess
import sys

from pydantic import ValidationError

from benchmarker.core.errors import DeviceError
from benchmarker.schema.environment import Environment

LIMIT_S = 300.0
"""The first import of torch from a cold network disk takes minutes."""


PROBE = (sys.executable, "-m", "benchmarker.sweep.probe")


def look_around(device: str, *, probe: tuple[str, ...] = PROBE) -> Environment:
    """The environment of a run on that device.

    Args:
        probe: What prints it, before its argument.

    Raises:
        DeviceError: There is no such device, or it does not answer.
    """
    command = [*probe, device]
    try:
        process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise DeviceError(f"--device {device}: it did not answer within {LIMIT_S:.0f} s") from None
    lines = process.stdout.splitlines()
    try:
        return Environment.model_validate_json(lines[-1] if lines else "")
    except ValidationError:
        last = next(
            (line for line in reversed(process.stderr.splitlines()) if line.strip()), f"exit {process.returncode}"
        )
        raise DeviceError(last.strip().removeprefix("error: ")) from None


def main() -> None:
    """Print the environment as JSON in the last line."""
    from benchmarker.core.console import one_line_errors
    from benchmarker.hardware.device import find_device
    from benchmarker.hardware.read_environment import environment

    with one_line_errors():
        print(environment(find_device(sys.argv[1])).model_dump_json())


if __name__ == "__main__":
    main()
