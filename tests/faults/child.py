"""Fake of `python -m benchmarker.run` in a sweep that writes its records and injects faults.

It imports only the standard library, so that it starts in a few hundredths of a second. Its first argument is a JSON
file with a blank record and the cells of each variant, and a list of faults. A fault with `times` occurs that often; a
file next to the script counts.
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
    arguments, _ = parser.parse_known_args()
    end_with_parent()
    script = json.loads(arguments.script.read_text())
    job = json.loads(arguments.job.read_text())
    part = argparse.Namespace(script=arguments.script, variant=job["variant"]["name"], **arguments.part)
    variant = script["variants"][part.variant]
    print(f"{part.variant}: a fake")
    identity = {
        "place": part.place,
        "round": part.round,
        "sweep": part.sweep,
        "run_id": Path(part.record).stem,
        "cells": [],
    }
    record = {**variant["record"], **identity}
    record["variant"]["quant"] = job["variant"]["quant"]
    record["procedure"]["profile"] = job["procedure"]["profile"] and part.profile
    faults = Faults(script["faults"], part)
    faults.step("start", record)
    save(record, part.record)
    faults.step("load", record)
    record["load"] = variant["load"]
    record["opened_at"] = time.time()
    save(record, part.record)
    if part.only == "quality":
        faults.step("quality", record)
        save({**record, "status": "complete", "quality": script["quality"]}, part.record)
        return
    for position in part.cells:
        began_s = time.time()
        faults.step(f"cell {position}", record)
        new_tokens = job["grid"]["new_tokens"][position]
        cell = {**variant["cells"][position], "new_tokens": new_tokens, "timed_at": [began_s, time.time()]}
        changed = faults.changed(position)
        record["cells"].append({**cell, **changed})
        print(f"  run 1/1: {cell['samples'][0]['latency_s']} s")
        save(record, part.record)
        if changed.get("status") == "oom_gpu":
            break
    faults.step("end", record)
    if part.profile:
        print("profiling one generation")
        record["profile"] = script["profile"]
    record["status"] = "complete"
    save(record, part.record)


class Faults:
    """Faults of this child, injected at named steps."""

    def __init__(self, faults: list, part: argparse.Namespace) -> None:
        self._part = part
        self._faults = [
            (number, fault)
            for number, fault in enumerate(faults)
            if fault["variant"] == part.variant and fault.get("round", part.round) == part.round
        ]

    def step(self, name: str, record: dict) -> None:
        for number, fault in self._faults:
            if fault["at"] == name and "do" in fault and self._is_due(number, fault):
                if fault["do"] == "work":
                    work(fault["seconds"])
                elif fault["do"] == "edit":
                    path = Path(fault["file"])
                    path.write_text(path.read_text().replace(*fault["words"]))
                else:
                    ACTIONS[fault["do"]](record, self._part.record)

    def changed(self, position: int) -> dict:
        """Return the fields of the cell that a fault replaces."""
        for number, fault in self._faults:
            if fault["at"] == f"cell {position}" and "cell" in fault and self._is_due(number, fault):
                return fault["cell"]
        return {}

    def _is_due(self, number: int, fault: dict) -> bool:
        counter = self._part.script.with_suffix(f".{number}")
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
    def action(record: dict, path: str) -> None:
        save({**record, "status": "failed", "error_kind": kind, "reason": reason}, path)
        print(f"error: {reason}", file=sys.stderr)
        sys.exit(code)

    return action


def hang(record: dict, path: str) -> None:
    time.sleep(600)


def hang_deaf(record: dict, path: str) -> None:
    """Hang and ignore SIGTERM and SIGINT."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(600)


def work(seconds: float) -> None:
    """Print a line twice a second, as a run with short generations does."""
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
    """Write half of the record, as a failing file system may."""
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
    """Interrupt the sweep, as Ctrl-C does."""
    os.kill(os.getppid(), number)
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        save({**record, "status": "interrupted"}, path)
        sys.exit(130)


def terminate(record: dict, path: str) -> None:
    """Terminate the sweep alone, as `docker stop` does."""
    interrupt(record, path, number=signal.SIGTERM)


def kill_the_sweep(record: dict, path: str) -> None:
    """Kill the process that started this child."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def kill_the_workers_parent(record: dict, path: str) -> None:
    """Kill Ray's worker, the parent of the process that started this child."""
    os.kill(parent_of(os.getppid()), signal.SIGKILL)
    time.sleep(600)


def kill_the_host(record: dict, path: str) -> None:
    """Kill Ray's process on this host and the worker, as if the host had failed."""
    worker = parent_of(os.getppid())
    os.kill(parent_of(worker), signal.SIGKILL)
    os.kill(worker, signal.SIGKILL)
    time.sleep(600)


def parent_of(process: int) -> int:
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rsplit(")", 1)[1].split()[1])


def leave_grandchild(record: dict, path: str) -> None:
    """Fork a process that keeps the output open and would outlive this child."""
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)


ACTIONS = {
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
