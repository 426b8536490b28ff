"""What runs at a Ray worker: it starts the process that does an order, and hands its lines and files back."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import benchmarker
from benchmarker.core.process import PARENT
from benchmarker.sweep.child import GRACE_S
from benchmarker.sweep.places.order import DELIVERY, ORDER, files_of, read_order, write_files

WORKER = ("-m", "benchmarker.sweep.places.worker")
SET_BY_RAY = re.compile(r"(OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS")
"""Variables that Ray sets in its workers, and that a measurement depends on."""


class LineQueue:
    """Lines on their way from the places to the sweep: a Ray actor."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, str]] = []

    def put(self, place: str, line: str) -> None:
        """Add a line of a place."""
        self._lines.append((place, line))

    def take(self) -> list[tuple[str, str]]:
        """The lines since the last call, each with its place."""
        lines, self._lines = self._lines, []
        return lines


def card_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that Ray would set and the user's shell has: the places get them as they are here."""
    return {name: value for name, value in variables.items() if SET_BY_RAY.fullmatch(name)}


def serve_order(files: Mapping[str, bytes], lines: Any, place: str, variables: Mapping[str, str]) -> Any:
    """Run the process that does an order.

    Args:
        files: The order's files, by name.
        lines: The `LineQueue` that the process's output goes to.
        place: Name of the place, which its lines are marked with.
        variables: Environment variables of the process.

    Returns:
        The files that the process left; or how it ended, in words, where it delivered nothing.
    """
    import ray

    context = ray.get_runtime_context()
    cards = context.get_accelerator_ids().get("GPU", [])
    with tempfile.TemporaryDirectory(prefix="benchmarker-") as home:
        parcel = Path(home) / "order"
        write_files(parcel, files)
        order = read_order(parcel)
        number = int(cards[0]) if cards and str(cards[0]).isdigit() else order.slot
        machine = {"card": f"{context.get_node_id()}/{number}", "slot": number % order.slots}
        (parcel / ORDER).write_text(order.model_copy(update=machine).model_dump_json())
        ended = _run(parcel, lines, place, variables)
        return files_of(parcel) if (parcel / DELIVERY).is_file() else ended


def _run(parcel: Path, lines: Any, place: str, variables: Mapping[str, str]) -> str:
    """Run the process to its end, and say in words how it ended."""
    inherited = {name: value for name, value in os.environ.items() if not SET_BY_RAY.fullmatch(name)}
    source = str(Path(benchmarker.__file__).parents[1])
    path = os.pathsep.join([source, *filter(None, [inherited.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, *WORKER, str(parcel)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        errors="replace",
        env={**inherited, **variables, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", PARENT: str(os.getpid())},
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put.remote(place, line.rstrip())
        code = process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(3 * GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
        raise
    return f"its process ended with {code} and delivered nothing"
