"""A driver: the program that runs an engine inside the engine's own environment, for benchmarker outside of it.

Started as `python -I driver_loop.py FILE`, where FILE is the driver's own module. Needs the standard library and the
engine, and nothing of benchmarker. Requests come as lines of JSON on standard input, and each is answered by a line on
what was standard output when the program began:

    {"do": "generate", "prompt_ids": [[1, 2]], ...}
    {"tokens": [[3, 4]], ...}   or   {"error": "one line"}

Engines print to standard output as they like: what they print goes to standard error.
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
from typing import IO, Any

PROTOCOL = 1
"""Changes when a request or an answer changes its meaning."""
CALLS = ("open", "generate", "score", "facts", "quantize", "close")
MEMORY_WORDS = (
    "memoryerror",
    "out of memory",
    "failed to allocate",
    "no available memory",
    "larger than the available",
)
"""The last two are vLLM's, where the KV cache does not fit beside the weights."""
PR_SET_PDEATHSIG = 1


def main(path: str) -> None:
    """Answer requests until standard input ends or `close` is asked for."""
    answers = _take_standard_output()
    _end_with_parent()
    driver: Any = None
    before_bytes: int | None = None
    for line in sys.stdin:
        arguments = json.loads(line)
        call = arguments.pop("do")
        try:
            driver = driver or _load(path)
            if call == "open":
                driver.import_engine(**arguments)
                # What the libraries take is not the model's.
                before_bytes = resident_bytes("VmRSS")
            answer = _answer(driver, call, arguments)
            if call == "facts" and before_bytes is not None and answer["peak_bytes"] is not None:
                answer["growth_bytes"] = max(0, answer["peak_bytes"] - before_bytes)
        except Exception as error:  # noqa: BLE001 - every failure is answered; whoever asked decides
            traceback.print_exc()
            answer = {"error": _one_line(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if call == "close":
            return


def _answer(driver: Any, call: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if call == "facts":
        return {**driver.facts(), **process_facts()}
    if call not in CALLS or not hasattr(driver, call):
        raise NotImplementedError(f"'{call}' is nothing that this driver does")
    answer: dict[str, Any] | None = getattr(driver, call)(**arguments)
    return answer or {}


def process_facts() -> dict[str, Any]:
    """What every driver says: its protocol, its Python, and the most memory that the process held on the host."""
    return {
        "protocol": PROTOCOL,
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "peak_bytes": resident_bytes("VmHWM"),
    }


def resident_bytes(field: str) -> int | None:
    """What the process holds on the host: `VmRSS` now, `VmHWM` at most so far; None off Linux.

    `getrusage` will not do: what it calls the most is that of the process that started this one, if that was more.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            match = re.search(rf"^{field}:\s+(\d+) kB", status.read(), re.MULTILINE)
    except OSError:
        return None
    return int(match.group(1)) * 1024 if match else None


def _one_line(error: Exception) -> str:
    """What went wrong. Engines have their own words for memory that ran out; the line begins with ours then."""
    # A driver's own sentences are of these two classes.
    words = str(error) if type(error) in (RuntimeError, NotImplementedError) else f"{type(error).__name__}: {error}"
    ran_out = any(word in words.lower() for word in MEMORY_WORDS)
    return " ".join(f"{'out of memory: ' if ran_out else ''}{words}".split())


def _load(path: str) -> Any:
    """An instance of the class `Driver` in a file."""
    spec = importlib.util.spec_from_file_location("engine_driver", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Driver()


def _take_standard_output() -> IO[str]:
    """The pipe for answers; from now on prints go to standard error, those of C libraries too."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _end_with_parent() -> None:
    """Ask Linux to kill this process when the one that started it dies, in the middle of a long call too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
