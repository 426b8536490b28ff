"""The processes of the other ranks: started by rank 0, watched, and ended.

A rank that dies, hangs or runs out of memory leaves the others waiting in an exchange of tensors, perhaps for ever. So
a thread looks twice a second whether each process lives and gives signs of life. When one does not, all of them are
ended and rank 0's exchange is broken off.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

from benchmarker.core.errors import BenchmarkerError, ErrorKind
from benchmarker.distributed.rank import Store, beats, failed, is_torchrun
from benchmarker.distributed.rank_process import LocalProcess, RankProcess

TICK_S = 0.5
SILENT_S = 15.0
"""A rank that gave no sign of life for so long hangs."""
FREED_S = 5.0
"""In which rank 0 comes back from an exchange that was broken off."""
CLOSE_S = 5.0
"""In which the others end by themselves once they were asked to."""
LATE = "hangs: what was asked of all ranks takes it several times as long as ever"


class RankError(BenchmarkerError):
    """A rank cannot go on, and with it none of them."""

    def __init__(self, rank: int, reason: str, kind: ErrorKind) -> None:
        super().__init__(f"rank {rank}: {reason}")
        self.kind = kind


class RankProcesses:
    """Ranks 1 and on, each a process: of this host, or where torchrun started one for it."""

    def __init__(self, count: int, port: int, *, stuck: Callable[[RankError], None]) -> None:
        """Start them, and watch them.

        Args:
            count: All ranks together.
            port: Where rank 0's store listens.
            stuck: See `open_ranks`.
        """
        self.failure: RankError | None = None
        """Why none of the ranks can go on; None as long as all are well."""
        self.awaited: tuple[float, Callable[[int], str]] | None = None
        """While rank 0 does something with the others: by when it must be done, on the monotonic clock, and the key
        that a rank sets when it has done its part."""
        self._stuck = stuck
        self._port = port
        self._is_closing = threading.Event()
        self._processes = _started(count, port)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def end(self, failure: RankError) -> None:
        """Remember why, and end them."""
        self.failure = self.failure or failure
        for process in self._processes.values():
            process.kill()

    def expect_end(self) -> None:
        """From here on it is no failure that one ends."""
        self._is_closing.set()

    def wait(self) -> None:
        """Wait until they are gone, and end those that are not soon."""
        self.expect_end()
        deadline_s = time.monotonic() + CLOSE_S
        for process in self._processes.values():
            process.wait(max(0.0, deadline_s - time.monotonic()))
        self._watcher.join(CLOSE_S)

    def _watch(self) -> None:
        store = Store(self._port)
        heard: dict[int, tuple[int | None, float]] = dict.fromkeys(self._processes, (None, time.monotonic()))
        while not self._is_closing.wait(TICK_S):
            for number in heard:
                failure = self._look(store, number, heard)
                if failure:
                    self.end(failure)
                    self._free(failure)
                    return

    def _look(self, store: Store, number: int, heard: dict[int, tuple[int | None, float]]) -> RankError | None:
        """Whether a rank is well; why it is not.

        Args:
            heard: The last sign of life of each rank, and when it came; brought up to date here.
        """
        process = self._processes[number]
        if told := store.read(failed(number)):
            return RankError(number, told["reason"], told["kind"])
        if process.poll():
            return RankError(number, process.end_words(), "crash")
        sign, now = store.read(beats(number)), time.monotonic()
        if sign != heard[number][0]:
            heard[number] = sign, now
        elif sign is not None and now - heard[number][1] > SILENT_S:
            return RankError(number, f"gave no sign of life for {SILENT_S:g} s", "timeout")
        until_s, key = self.awaited or (now, beats)
        return RankError(number, LATE, "timeout") if now > until_s and store.read(key(number)) is None else None

    def _free(self, failure: RankError) -> None:
        """Break off what rank 0 waits for. Where it does not come back, leave with the failure said."""
        break_off()
        deadline_s = time.monotonic() + FREED_S
        while self.awaited and time.monotonic() < deadline_s:
            time.sleep(TICK_S / 4)
        if self.awaited:
            # Stuck inside the driver or a library, where no exception of ours gets to.
            self._stuck(failure)
            os._exit(1)


def break_off() -> None:
    """End the exchange that this process waits in, and the process group with it."""
    import torch.distributed as dist

    if dist.is_initialized():
        # NCCL alone can; gloo sees for itself that the others are gone.
        with contextlib.suppress(RuntimeError):
            dist.distributed_c10d._abort_process_group()


def _started(count: int, port: int) -> dict[int, RankProcess]:
    if not is_torchrun():
        return {number: LocalProcess(number, port) for number in range(1, count)}
    from benchmarker.distributed.torchrun import ask_for_ranks

    return ask_for_ranks(count, port)
