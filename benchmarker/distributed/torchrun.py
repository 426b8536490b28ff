"""Ranks on several hosts: `torchrun ... -m benchmarker run context_parallel ...` starts one process for each.

Every process of torchrun runs the same command. Rank 0 measures. Each other process starts its rank whenever rank 0
opens ranks, and reports how the rank ended, through torchrun's own store.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from benchmarker.core.errors import DeviceError
from benchmarker.distributed.rank import STOP, Store, is_torchrun, key
from benchmarker.distributed.ranks import TICK_S, LocalProcess, RankProcess

LEADS = "BENCHMARKER_LEADS"
"""Variable with the number of torchrun's processes. WORLD_SIZE is the number of open ranks."""
OPENINGS = "benchmarker/openings"
OPENING = "benchmarker/opening"
"""Key, with the number of an opening, of the count and port of the ranks to open, or of `STOP`."""
KILL = "benchmarker/kill"
"""Key, with the number of an opening, that is set when its ranks must end at once."""
ENDED = "benchmarker/ended"
"""Key, with the numbers of an opening and a rank, of how the rank ended."""


def world_size() -> int:
    return int(os.environ.get(LEADS) or os.environ["WORLD_SIZE"])


def hosts() -> int:
    return int(os.environ.get("GROUP_WORLD_SIZE", "1")) if is_torchrun() else 1


def agent_store() -> Store:
    """Connect to torchrun's store, which rank 0 holds itself if torchrun's agent does not."""
    is_server = os.environ["RANK"] == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return Store(int(os.environ["MASTER_PORT"]), is_server=is_server)


class TorchrunProcess:
    def __init__(self, store: Store, number: int, rank: int) -> None:
        self._store = store
        self._number = number
        self._rank = rank

    def has_ended(self) -> bool:
        return self._store.read(key(ENDED, self._number, self._rank)) is not None

    def kill(self) -> None:
        """End it at the next tick of the process that started it, if that host still runs."""
        with contextlib.suppress(RuntimeError):
            self._store.put(key(KILL, self._number), True)

    def wait(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not self.has_ended() and time.monotonic() < deadline_s:
            time.sleep(TICK_S / 4)

    def end_words(self) -> str:
        return str(self._store.read(key(ENDED, self._number, self._rank)))


def request_ranks(count: int, port: int) -> dict[int, RankProcess]:
    """Let torchrun's other processes start ranks 1 and higher. Raises DeviceError."""
    if count > world_size():
        raise DeviceError(f"{count} ranks: torchrun started {world_size()} processes; start as many")
    store = agent_store()
    number = store.torch_store.add(OPENINGS, 1) - 1
    store.put(key(OPENING, number), {"count": count, "port": port})
    return {rank: TorchrunProcess(store, number, rank) for rank in range(1, count)}


def follow() -> None:
    """Start this process's rank whenever rank 0 opens ranks, until rank 0's command ends."""
    rank, store, number = int(os.environ["RANK"]), agent_store(), 0
    while (order := store.take(key(OPENING, number))) != STOP:
        if rank < order["count"]:
            process = LocalProcess(rank, order["port"])
            while not process.has_ended():
                if store.read(key(KILL, number)):
                    process.kill()
                time.sleep(TICK_S)
            store.put(key(ENDED, number, rank), process.end_words())
            process.wait(0)
        number += 1


@contextlib.contextmanager
def leading() -> Iterator[None]:
    """Surround rank 0's command, and end the other processes of torchrun after it."""
    os.environ[LEADS] = os.environ["WORLD_SIZE"]
    # Kept open, because this process may hold the store.
    store = agent_store()
    try:
        yield
    finally:
        store.put(key(OPENING, store.torch_store.add(OPENINGS, 1) - 1), STOP)
