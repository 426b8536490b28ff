"""Several processes of this host that compute together, from rank 0's side: the process that measures.

    with open_ranks("package.module:function", arguments, devices=["cuda:0", "cuda:1"], device=device) as ranks:
        result, answers = ranks.together({"do": "add"}, add, kind="add")

Each other rank runs the function, which answers messages (distributed/rank.py). If any rank fails, a RankError here
names the rank, and no process is left.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from benchmarker.core.errors import UnsupportedError, first_line
from benchmarker.distributed.rank import STOP, TASK, Store, answered, here, process_group, said
from benchmarker.distributed.rank_processes import TICK_S, RankError, RankProcesses, break_off
from benchmarker.hardware.device import Device

FIRST_S = 300.0
"""Longest time for the first of a kind of message, and for a rank to begin."""
LEAST_S = 20.0
"""Longest time for a later one, unless the longest so far took a fifth of it or more."""
SLOWER = 5
POLL_S = 0.002

Result = TypeVar("Result")


class Ranks:
    """All ranks, from rank 0."""

    def __init__(self, store: Store, device: Device, others: RankProcesses, *, count: int) -> None:
        self.count = count
        """All ranks together."""
        self._store = store
        self._device = device
        self._others = others
        self._messages = 0
        self._longest_s: dict[str, float] = {}

    def together(
        self, message: Mapping[str, Any], work: Callable[[], Result], *, kind: str
    ) -> tuple[Result, list[Any]]:
        """Have every rank do one thing: the others what the message says, this one the work.

        Args:
            kind: The same for messages that take about equally long. Their times tell when a rank hangs.

        Returns:
            What the work returned, and the answers of rank 1 and on.

        Raises:
            RankError: A rank died, hangs, or did not do it; or could not go on since an earlier message.
        """
        began_s = time.monotonic()
        longest_s = self._longest_s.get(kind)
        with self.guarded(FIRST_S if longest_s is None else max(LEAST_S, SLOWER * longest_s)):
            self._store.put(said(self._messages), message)
            result = work()
            answers = [self._answer(rank) for rank in range(1, self.count)]
        self._messages += 1
        self._longest_s[kind] = max(longest_s or 0.0, time.monotonic() - began_s)
        return result, answers

    @contextmanager
    def guarded(self, limit_s: float) -> Iterator[None]:
        """Around what this rank does together with the others.

        Args:
            limit_s: After which a rank is taken to hang.

        Raises:
            RankError: In place of whatever error a failed rank caused here.
        """
        if self._others.failure:
            raise self._others.failure
        messages = self._messages
        self._others.awaited = time.monotonic() + limit_s, lambda rank: answered(rank, messages)
        try:
            yield
        except UnsupportedError:
            # All ranks say so alike, and take the next message.
            self._messages += 1
            raise
        except Exception as error:
            if not self._device.is_out_of_memory(error):
                self._raise_soon(error)
            self._others.end(RankError(0, f"{first_line(error)}; the ranks cannot go on", "other"))
            raise
        except KeyboardInterrupt:
            self._others.end(RankError(0, "interrupted", "interrupted"))
            raise
        finally:
            self._others.awaited = None
        if self._others.failure:
            raise self._others.failure

    def join(self, devices: Sequence[str]) -> contextlib.AbstractContextManager[None]:
        """Wait until all ranks are there, and join their process group."""
        self._store.put(here(0), True)
        for number in range(1, self.count):
            self._take(here(number))
        return process_group(0, self.count, self._store.port, devices[0])

    def close(self) -> None:
        """End all ranks: kindly where they are well."""
        self._others.expect_end()
        if self._others.failure:
            break_off()
        else:
            self._store.put(said(self._messages), STOP)

    def _answer(self, rank: int) -> Any:
        answer = self._take(answered(rank, self._messages))
        if "error" in answer:
            raise RankError(rank, answer["error"], answer["kind"])
        return answer["answer"]

    def _take(self, key: str) -> Any:
        """A value that another rank sets, as soon as it does; raises the RankError where one failed meanwhile."""
        while self._others.failure is None:
            if (value := self._store.read(key)) is not None:
                return value
            time.sleep(POLL_S)
        raise self._others.failure

    def _raise_soon(self, error: Exception) -> None:
        """Raise what the watcher finds in the next moments: it looks twice a second."""
        deadline_s = time.monotonic() + 4 * TICK_S
        while self._others.failure is None and time.monotonic() < deadline_s:
            time.sleep(TICK_S / 4)
        if self._others.failure:
            raise self._others.failure from error


def no_words(failure: RankError) -> None:
    """Says nothing."""


@contextmanager
def open_ranks(
    target: str,
    arguments: Mapping[str, Any],
    *,
    devices: Sequence[str],
    device: Device,
    stuck: Callable[[RankError], None] = no_words,
) -> Iterator[Ranks]:
    """Start the other ranks and join their process group; the value sends them messages.

    Args:
        target: `package.module:function`: what each other rank runs. It takes its Rank and the arguments, and mostly
            opens something and then calls `rank.serve`.
        arguments: What JSON has.
        devices: Of each rank, as torch names them; the first is this process's own.
        device: The first of them.
        stuck: Called where rank 0 itself cannot be freed from an exchange with a rank that failed: the last chance to
            save something, since the process then ends.

    Raises:
        RankError: A rank did not come up.
    """
    store = Store(0, is_server=True)
    store.put(TASK, {"target": target, "arguments": arguments, "devices": list(devices)})
    with contextlib.ExitStack() as stack:
        others = RankProcesses(len(devices), store.port, stuck=stuck)
        stack.callback(others.wait)
        ranks = Ranks(store, device, others, count=len(devices))
        with ranks.guarded(FIRST_S):
            stack.enter_context(ranks.join(devices))
        stack.callback(ranks.close)
        yield ranks
