"""Several processes that compute together, seen from rank 0, the process that measures.

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
from benchmarker.distributed.rank import STOP, TASK, Store, answer_key, message_key, process_group, ready_key
from benchmarker.distributed.rank_watch import TICK_S, RankError, RankProcesses, break_off
from benchmarker.hardware.device import Device

FIRST_S = 300.0
"""Longest time of the first message of a kind, and of starting a rank."""
LEAST_S = 20.0
"""Shortest limit of a later message."""
SLOWER = 5
"""Limit of a later message as a multiple of the longest message of its kind."""
POLL_S = 0.002

Result = TypeVar("Result")


class Ranks:
    """All ranks, from rank 0."""

    def __init__(self, store: Store, device: Device, others: RankProcesses, *, count: int) -> None:
        self.count = count
        """Number of ranks, including rank 0."""
        self._store = store
        self._device = device
        self._others = others
        self._messages = 0
        self._longest_s: dict[str, float] = {}

    def together(
        self, message: Mapping[str, Any], work: Callable[[], Result], *, kind: str
    ) -> tuple[Result, list[Any]]:
        """Let every rank do one thing: the other ranks carry out the message, this one the work.

        Args:
            kind: Equal for messages that take about equally long. The times of a kind set the limit after which a rank
                hangs.

        Returns:
            Result of the work, and the answers of ranks 1 and higher.

        Raises:
            RankError: A rank died, hangs, refused, or has failed at an earlier message.
        """
        began_s = time.monotonic()
        longest_s = self._longest_s.get(kind)
        with self.guarded(FIRST_S if longest_s is None else max(LEAST_S, SLOWER * longest_s)):
            self._store.put(message_key(self._messages), message)
            result = work()
            answers = [self._answer(rank) for rank in range(1, self.count)]
        self._messages += 1
        self._longest_s[kind] = max(longest_s or 0.0, time.monotonic() - began_s)
        return result, answers

    @contextmanager
    def guarded(self, limit_s: float) -> Iterator[None]:
        """Surround work that this rank does together with the others.

        Args:
            limit_s: Time after which a rank hangs.

        Raises:
            RankError: Replaces any error that a failed rank caused here.
        """
        if self._others.failure:
            raise self._others.failure
        messages = self._messages
        self._others.awaited = time.monotonic() + limit_s, lambda rank: answer_key(rank, messages)
        try:
            yield
        except UnsupportedError:
            # All ranks refuse alike, and take the next message.
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
        """Wait until all ranks are ready, and join their process group."""
        self._store.put(ready_key(0), True)
        for number in range(1, self.count):
            self._take(ready_key(number))
        return process_group(0, self.count, self._store.port, devices[0])

    def close(self) -> None:
        """End all ranks, with `STOP` if they are well."""
        self._others.expect_end()
        if self._others.failure:
            break_off()
        else:
            self._store.put(message_key(self._messages), STOP)

    def _answer(self, rank: int) -> Any:
        answer = self._take(answer_key(rank, self._messages))
        if "error" in answer:
            raise RankError(rank, answer["error"], answer["kind"])
        return answer["answer"]

    def _take(self, key: str) -> Any:
        """Return a value as soon as another rank sets it; raise the RankError if one fails meanwhile."""
        while self._others.failure is None:
            if (value := self._store.read(key)) is not None:
                return value
            time.sleep(POLL_S)
        raise self._others.failure

    def _raise_soon(self, error: Exception) -> None:
        """Raise the failure that the watcher finds within its next ticks, if any."""
        deadline_s = time.monotonic() + 4 * TICK_S
        while self._others.failure is None and time.monotonic() < deadline_s:
            time.sleep(TICK_S / 4)
        if self._others.failure:
            raise self._others.failure from error


@contextmanager
def open_ranks(
    target: str,
    arguments: Mapping[str, Any],
    *,
    devices: Sequence[str],
    device: Device,
    stuck: Callable[[RankError], None] = lambda failure: None,
) -> Iterator[Ranks]:
    """Start the other ranks, join their process group, and yield the object that sends them messages.

    Args:
        target: `package.module:function` that each other rank runs. It takes its Rank and the arguments, and usually
            ends with `rank.serve`.
        arguments: Values that JSON supports.
        devices: Device of each rank, as torch names it; the first is this process's own.
        device: The first of them.
        stuck: Called if rank 0 cannot be freed from an exchange with a failed rank, just before the process exits: the
            last chance to save something.

    Raises:
        RankError: A rank did not start.
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
