"""Stands in for `python -m benchmarker.run` in a sweep: writes records as it does, and fails as it is told.

Only the standard library, so that it starts in a few hundredths of a second. Its first argument is a script: a JSON
file with a blank record and the keys of the cells of each variant, and a list of faults. A fault that has a number of
times happens that often; a file beside the script counts.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("script", type=Path)
    parser.add_argument("--job", type=Path)
    parser.add_argument("--part", type=json.loads)
    words, _ = parser.parse_known_args()
    end_with_parent()
    script = json.loads(words.script.read_text())
    job = json.loads(words.job.read_text())
    given = argparse.Namespace(script=words.script, variant=job["variant"]["name"], **words.part)
    variant = script["variants"][given.variant]
    print(f"{given.variant}: a fake")
    own = {
        "place": given.place,
        "round": given.round,
        "sweep": given.sweep,
        "run_id": Path(given.record).stem,
        "cells": [],
    }
    record = {**variant["record"], **own}
    record["variant"]["quant"] = job["variant"]["quant"]
    record["procedure"]["profile"] = job["procedure"]["profile"] and given.profile
    at = At(script["faults"], given)
    at.step("start", record)
    save(record, given.record)
    at.step("load", record)
    record["load"] = variant["load"]
    record["opened_at"] = time.time()
    save(record, given.record)
    if given.only == "quality":
        at.step("quality", record)
        save({**record, "status": "complete", "quality": script["quality"]}, given.record)
        return
    for position in given.cells:
        began_s = time.time()
        at.step(f"cell {position}", record)
        new_tokens = job["grid"]["new_tokens"][position]
        cell = {**variant["cells"][position], "new_tokens": new_tokens, "timed_at": [began_s, time.time()]}
        changed = at.changed(position)
        record["cells"].append({**cell, **changed})
        print(f"  run 1/1: {cell['samples'][0]['latency_s']} s")
        save(record, given.record)
        if changed.get("status") == "oom_gpu":
            break
    at.step("end", record)
    if given.profile:
        print("profiling one generation")
        record["profile"] = script["profile"]
    record["status"] = "complete"
    save(record, given.record)


class At:
    """Where this child is, and what should happen there."""

    def __init__(self, faults: list, given: argparse.Namespace) -> None:
        self._given = given
        self._faults = [
            (number, fault)
            for number, fault in enumerate(faults)
            if fault["variant"] == given.variant and fault.get("round", given.round) == given.round
        ]

    def step(self, where: str, record: dict) -> None:
        for number, fault in self._faults:
            if fault["at"] == where and "do" in fault and self._is_due(number, fault):
                if fault["do"] == "work":
                    work(fault["seconds"])
                elif fault["do"] == "edit":
                    path = Path(fault["file"])
                    path.write_text(path.read_text().replace(*fault["words"]))
                else:
                    DEEDS[fault["do"]](record, self._given.record)

    def changed(self, position: int) -> dict:
        """Fields of the cell that come out another way."""
        for number, fault in self._faults:
            if fault["at"] == f"cell {position}" and "cell" in fault and self._is_due(number, fault):
                return fault["cell"]
        return {}

    def _is_due(self, number: int, fault: dict) -> bool:
        counter = self._given.script.with_suffix(f".{number}")
        times = len(counter.read_text()) if counter.exists() else 0
        counter.write_text("x" * (times + 1))
        return times < fault.get("times", 1000)


def save(record: dict, path: str) -> None:
    temporary = f"{path}.tmp"
    try:
        Path(temporary).write_text(json.dumps(record, indent=1))
    except OSError as error:
        sys.exit(f"error: {path}: not saved: {error.strerror}")
    os.replace(temporary, path)


def fail(kind: str, reason: str, code: int):
    def deed(record: dict, path: str) -> None:
        save({**record, "status": "failed", "error_kind": kind, "reason": reason}, path)
        print(f"error: {reason}", file=sys.stderr)
        sys.exit(code)

    return deed


def hang(record: dict, path: str) -> None:
    time.sleep(600)


def hang_deaf(record: dict, path: str) -> None:
    """A hang that TERM does not end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(600)


def work(seconds: float) -> None:
    """A line twice a second, as short generations print them."""
    for number in range(int(2 * seconds)):
        time.sleep(0.5)
        print(f"  run {number}/{2 * seconds}: latency 0.5 s", flush=True)


def leave(record: dict, path: str) -> None:
    print("leaving without a word in the record")
    sys.exit(7)


def die(record: dict, path: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segfault(record: dict, path: str) -> None:
    ctypes.string_at(0)


def half(record: dict, path: str) -> None:
    """A file system that lost the second half of the file."""
    text = json.dumps(record)
    Path(path).write_text(text[: len(text) // 2])
    os._exit(0)


def flood(record: dict, path: str) -> None:
    line = b"y" * 999 + b"\n"
    for _ in range(100):
        os.write(1, line * 1000)


def one_long_line(record: dict, path: str) -> None:
    for _ in range(20):
        os.write(1, b"z" * 1_000_000)


def control_codes(record: dict, path: str) -> None:
    print("\x1b[2J\x1b]0;title\x07 \N{RIGHT-TO-LEFT OVERRIDE}cleared")


def interrupt(record: dict, path: str, number: int = signal.SIGINT) -> None:
    """As if the user pressed Ctrl-C now."""
    os.kill(os.getppid(), number)
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        save({**record, "status": "interrupted"}, path)
        sys.exit(130)


def terminate(record: dict, path: str) -> None:
    """As `docker stop` ends a sweep: the signal reaches the sweep alone."""
    interrupt(record, path, number=signal.SIGTERM)


def kill_the_sweep(record: dict, path: str) -> None:
    """As if the process died that this one was started by."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def kill_the_workers_parent(record: dict, path: str) -> None:
    """As if Ray's worker died, which started the process that started this one."""
    os.kill(parent_of(os.getppid()), signal.SIGKILL)
    time.sleep(600)


def kill_the_host(record: dict, path: str) -> None:
    """As if the host died: Ray's own process there, and the worker that this one was started by."""
    worker = parent_of(os.getppid())
    os.kill(parent_of(worker), signal.SIGKILL)
    os.kill(worker, signal.SIGKILL)
    time.sleep(600)


def parent_of(process: int) -> int:
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rsplit(")", 1)[1].split()[1])


def leave_grandchild(record: dict, path: str) -> None:
    """A helper that keeps the output open and would outlive its parent."""
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)


DEEDS = {
    "hang": hang,
    "hang deaf": hang_deaf,
    "exit": leave,
    "SIGKILL": die,
    "segfault": segfault,
    "half a record": half,
    "flood": flood,
    "one long line": one_long_line,
    "control codes": control_codes,
    "interrupt": interrupt,
    "terminate": terminate,
    "kill the sweep": kill_the_sweep,
    "kill the worker's parent": kill_the_workers_parent,
    "kill the host": kill_the_host,
    "grandchild": leave_grandchild,
    "slow": lambda record, path: time.sleep(0.7),
    "out of memory": fail("oom_gpu", "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", 1),
    "unsupported": fail("device", "this GPU cannot", 2),
    "error": fail("other", "RuntimeError: shapes do not match", 1),
}


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    main()
