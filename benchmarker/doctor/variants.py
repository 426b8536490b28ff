"""Which variants run here: those that nothing speaks against are really tried, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarker.hardware.device import Device
from benchmarker.workloads.generation.doctor import FIRST_ENGINE, Outcome, trial

TRY_LIMIT_S = 600.0
"""GPTQ builds an extension when it is first used."""


def try_all(
    looked: Sequence[Outcome],
    device: Device,
    *,
    say: Callable[[str], None],
    command: tuple[str, ...] = (sys.executable, "-m", "benchmarker.run"),
) -> Iterator[Outcome]:
    """Run what nothing speaks against. What fails in the first way is tried in no other, which builds on it."""
    failed: dict[str, str] = {}
    with trial(device) as (arguments_of, folder):
        for outcome in looked:
            reason = outcome.reason or failed.get(outcome.variant)
            if reason:
                yield replace(outcome, reason=reason)
                continue
            say(f"trying {outcome.variant}, {outcome.way}")
            reason = _why_failed([*command, *arguments_of(outcome)], folder)
            if reason and outcome.way == FIRST_ENGINE:
                failed[outcome.variant] = reason
            yield Outcome(outcome.variant, outcome.way, reason)


def _why_failed(command: list[str], folder: Path) -> str | None:
    """The last line of a run that failed; None of one that did not."""
    environment = {**os.environ, "BENCHMARKER_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    try:
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TRY_LIMIT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {TRY_LIMIT_S:.0f} s"
    if process.returncode == 0:
        return None
    lines = [line.strip() for line in (process.stderr + "\n" + process.stdout).splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("error: ")), None) or _cell_reason(folder)
    if reason:
        return reason.removeprefix("error: ")
    return lines[-1][:300] if lines else f"it ended with {process.returncode}"


def _cell_reason(folder: Path) -> str | None:
    """From the newest record: why its cell is not ok."""
    records = sorted((folder / "records").glob("*.json"), key=lambda path: path.stat().st_mtime)
    if not records:
        return None
    cells = json.loads(records[-1].read_text())["cells"]
    return next((str(cell["reason"]) for cell in cells if cell["status"] != "ok"), None)
