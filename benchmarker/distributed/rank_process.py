"""The process of another rank: one that this process starts, or that somebody else does (distributed/torchrun.py)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from typing import IO

from benchmarker.core.process import PARENT
from benchmarker.distributed.rank import PORT


class RankProcess(ABC):
    """A rank's process, wherever it is."""

    @abstractmethod
    def poll(self) -> bool:
        """Whether it has ended."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once."""

    @abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, or so long. To be called once."""

    @abstractmethod
    def end_words(self) -> str:
        """How it ended."""


class LocalProcess(RankProcess):
    """A rank of this host."""

    def __init__(self, number: int, port: int) -> None:
        """Start it.

        Args:
            port: Where rank 0's store listens.
        """
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            # In this process's group, so that whoever ends the group ends the rank too.
            [sys.executable, "-m", "benchmarker.distributed.rank"],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "RANK": str(number), PORT: str(port), PARENT: str(os.getpid())},
        )

    def poll(self) -> bool:
        """See RankProcess.poll."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """See RankProcess.kill."""
        self._process.kill()

    def wait(self, timeout_s: float) -> None:
        """See RankProcess.wait. It is ended if it is not soon."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        self._process.kill()
        self._process.wait()
        self._output.close()

    def end_words(self) -> str:
        """With the last line that it printed, but for one that was killed, which had no last word."""
        code = self._process.returncode
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended (exit {code})"
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return how if code == -signal.SIGKILL or not lines else f"{how}: {lines[-1].strip()[:300]}"
