"""Places on this host: one process for each card, that sees this card alone and has its own cores."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarker.core.process import PARENT
from benchmarker.sweep.child import GRACE_S
from benchmarker.sweep.places.order import Order, read_delivery
from benchmarker.sweep.places.place import LOCAL, Ended, Place

WORKER = (sys.executable, "-m", "benchmarker.sweep.places.worker")
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Holds for NVIDIA and, in torch for ROCm, for AMD too."""
STEP_S = 0.1
END_S = 3 * GRACE_S
"""A worker that is interrupted ends its own child first."""


@dataclass(frozen=True)
class Running:
    """A worker under way."""

    place: Place
    parcel: Path
    process: subprocess.Popen[bytes]
    reader: threading.Thread


class LocalPlaces:
    """Cards of this host by number. See Places."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = tuple(numbers)
        host = socket.gethostname()
        self._places = tuple(
            Place(name=f"{LOCAL}{number}", host=host, slot=slot, slots=len(numbers))
            for slot, number in enumerate(numbers)
        )
        self._running: list[Running] = []
        self._lines: deque[tuple[Place, str]] = deque()

    def places(self) -> Sequence[Place]:
        """See Places.places."""
        return self._places

    def start(self, place: Place, parcel: Path, order: Order) -> None:
        """See Places.start."""
        del order  # It lies in the folder.
        process = subprocess.Popen(
            [*WORKER, str(parcel)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Ctrl-C at the terminal is ours to pass on.
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                PARENT: str(os.getpid()),
                VISIBLE: visible_card(self._numbers[place.slot], os.environ.get(VISIBLE)),
            },
        )
        assert process.stdout is not None
        reader = threading.Thread(target=self._read, args=(place, process.stdout), daemon=True)
        reader.start()
        self._running.append(Running(place, parcel, process, reader))

    def ended(self, timeout_s: float) -> list[Ended]:
        """See Places.ended."""
        end_s = time.monotonic() + timeout_s
        while not (over := [running for running in self._running if running.process.poll() is not None]):
            if time.monotonic() >= end_s:
                return []
            time.sleep(STEP_S)
        for running in over:
            self._running.remove(running)
            running.reader.join(GRACE_S)
        return [
            Ended(
                running.place,
                running.parcel,
                None if read_delivery(running.parcel) else _end_words(running.process.returncode),
            )
            for running in over
        ]

    def lines(self) -> list[tuple[Place, str]]:
        """See Places.lines."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def stop(self) -> None:
        """See Places.stop."""
        for number in (signal.SIGINT, signal.SIGKILL):
            for running in self._running:
                with contextlib.suppress(ProcessLookupError):
                    running.process.send_signal(number)
            end_s = time.monotonic() + END_S
            for running in self._running:
                with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                    running.process.wait(max(0.0, end_s - time.monotonic()))
        self._running.clear()

    def _read(self, place: Place, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self._lines.append((place, line.decode(errors="replace").rstrip()))


def visible_card(number: int, visible: str | None) -> str:
    """Name of the card that this process calls by that number, for a process that is to see it alone."""
    names = visible.split(",") if visible else []
    return names[number] if number < len(names) else str(number)


def _end_words(code: int) -> str:
    if code < 0:
        return f"its process died of {signal.Signals(-code).name}"
    return f"its process ended with {code} and delivered nothing"
