"""Main program of a driver, which runs an engine inside the engine's own environment.

It is started as `python -I driver_loop.py FILE` with the engine's driver module. It needs the standard library and the
engine, but not benchmarker. external/driver_process.py describes the protocol.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import signal
import sys
import traceback
from typing import Any

MEMORY_WORDS = (
    "memoryerror",
    "out of memory",
    "failed to allocate",
    "no available memory",
    "larger than the available",
)
"""Parts of the error messages with which engines report that memory ran out."""
PR_SET_PDEATHSIG = 1


def main(path: str) -> None:
    # Redirect the engine's output to standard error: standard output carries the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # Linux kills the driver if the process that started it ends.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    driver: Any = None
    before_bytes: int | None = None
    for line in sys.stdin:
        arguments = json.loads(line)
        call = arguments.pop("do")
        try:
            driver = driver or _load(path)
            if call == "open":
                driver.import_engine(**arguments)
                # Measured after the imports, because memory of libraries does not count as the model's.
                before_bytes = resident_bytes("VmRSS")
            answer = getattr(driver, call)(**arguments) or {}
            if call == "facts":
                peak_bytes = resident_bytes("VmHWM")
                answer |= {"python": ".".join(map(str, sys.version_info[:3])), "peak_bytes": peak_bytes}
                if before_bytes is not None and peak_bytes is not None:
                    answer["growth_bytes"] = max(0, peak_bytes - before_bytes)
        except Exception as error:  # noqa: BLE001 - every failure is answered
            traceback.print_exc()
            answer = {"error": _one_line(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if call == "close":
            return


def resident_bytes(field: str) -> int | None:
    """Return the process's host memory in bytes: current for `VmRSS`, peak for `VmHWM`; None in some sandboxes."""
    # The peak of `getrusage` includes that of the parent process.
    with open("/proc/self/status", encoding="ascii") as status:
        match = re.search(rf"^{field}:\s+(\d+) kB", status.read(), re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


def _one_line(error: Exception) -> str:
    # A driver raises these two classes itself, with complete sentences.
    words = str(error) if type(error) in (RuntimeError, NotImplementedError) else f"{type(error).__name__}: {error}"
    if type(error).__name__ == "ValidationError":  # pydantic's text also contains all arguments and a link.
        words = re.sub(r"\[type=.*", "", words.split("Value error, ")[-1], flags=re.DOTALL)
    ran_out = any(word in words.lower() for word in MEMORY_WORDS)
    return " ".join(f"{'out of memory: ' if ran_out else ''}{words}".split())


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("engine_driver", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Driver()


if __name__ == "__main__":
    main(sys.argv[1])
