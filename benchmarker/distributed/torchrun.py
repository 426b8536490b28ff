"""Ranks of several hosts: `torchrun ... -m benchmarker run context_parallel ...` starts a process for each.

Every process of torchrun runs the same command. That of rank 0 measures. Each other one starts its rank whenever rank 0
opens ranks, and says how it ended. They speak through torchrun's own store, which lives as long as torchrun does.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from benchmarker.core.errors import DeviceError
from benchmarker.distributed.rank import STOP, Store, is_torchrun
from benchmarker.distributed.rank_process import LocalProcess, RankProcess

TICK_S = 0.5
LEADS = "BENCHMARKER_LEADS"
"""Variable with the number of torchrun's processes, in rank 0's command and what it starts: WORLD_SIZE is of the ranks
that are open."""
OPENINGS = "benchmarker/openings"


def world_size() -> int:
    """Processes that torchrun started, on all hosts."""
    return int(os.environ.get(LEADS) or os.environ["WORLD_SIZE"])


def hosts() -> int:
    """Hosts that they are on; 1 without torchrun."""
    return int(os.environ.get("GROUP_WORLD_SIZE", "1")) if is_torchrun() else 1


def agent_store() -> Store:
    """A connection to torchrun's store, which rank 0 holds itself where torchrun's agent does not."""
    is_server = os.environ["RANK"] == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return Store(int(os.environ["MASTER_PORT"]), is_server=is_server)


def opening(number: int) -> str:
    """Key of what the ranks are opened with, or of the end."""
    return f"benchmarker/opening/{number}"


def kill(number: int) -> str:
    """Key that says that the ranks of an opening must end at once."""
    return f"benchmarker/kill/{number}"


def ended(number: int, rank: int) -> str:
    """Key under which it is said how a rank ended."""
    return f"benchmarker/ended/{number}/{rank}"


class TorchrunProcess(RankProcess):
    """A rank that another process of torchrun starts."""

    def __init__(self, store: Store, number: int, rank: int) -> None:
        """Watch one.

        Args:
            number: Of the opening.
        """
        self._store = store
        self._number = number
        self._rank = rank

    def poll(self) -> bool:
        """See RankProcess.poll."""
        return self._store.read(ended(self._number, self._rank)) is not None

    def kill(self) -> None:
        """See RankProcess.kill. Its starter looks twice a second, if its host still lives."""
        with contextlib.suppress(RuntimeError):
            self._store.put(kill(self._number), True)

    def wait(self, timeout_s: float) -> None:
        """See RankProcess.wait."""
        deadline_s = time.monotonic() + timeout_s
        while not self.poll() and time.monotonic() < deadline_s:
            time.sleep(TICK_S / 4)

    def end_words(self) -> str:
        """See RankProcess.end_words."""
        return str(self._store.read(ended(self._number, self._rank)))


def ask_for_ranks(count: int, port: int) -> dict[int, RankProcess]:
    """Have torchrun's other processes start ranks 1 and on.

    Args:
        count: All ranks together.
        port: Where rank 0's store listens.

    Raises:
        DeviceError: torchrun started fewer processes.
    """
    if count > world_size():
        raise DeviceError(f"{count} ranks: torchrun started {world_size()} processes; start as many")
    store = agent_store()
    number = store.torch_store.add(OPENINGS, 1) - 1
    store.put(opening(number), {"count": count, "port": port})
    return {rank: TorchrunProcess(store, number, rank) for rank in range(1, count)}


def follow() -> None:
    """Start this process's rank whenever rank 0 opens ranks, until its command ends."""
    rank, store, number = int(os.environ["RANK"]), agent_store(), 0
    while (order := store.take(opening(number))) != STOP:
        if rank < order["count"]:
            process = LocalProcess(rank, order["port"])
            while not process.poll():
                if store.read(kill(number)):
                    process.kill()
                time.sleep(TICK_S)
            store.put(ended(number, rank), process.end_words())
            process.wait(0)
        number += 1


@contextlib.contextmanager
def leading() -> Iterator[None]:
    """Around the command of rank 0: at its end the other processes of torchrun end too."""
    os.environ[LEADS] = os.environ["WORLD_SIZE"]
    # It is kept open: it may be rank 0 that holds the store.
    store = agent_store()
    try:
        yield
    finally:
        store.put(opening(store.torch_store.add(OPENINGS, 1) - 1), STOP)
