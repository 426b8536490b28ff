"""One of several processes that compute together, each with a device of its own: a rank.

Rank 0 is the process that measures. It starts the others, and sends them messages; each does what a message says and
answers it. Messages go through a store (torch's TCPStore) of rank 0, on the loopback of one host; tensors through a
process group: NCCL between GPUs, gloo between processors. `python -m benchmarker.distributed.rank` starts another rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import BenchmarkerError, sentence_of
from benchmarker.core.named_import import imported
from benchmarker.core.process import end_with_parent
from benchmarker.hardware.device import Device, find_device, kind_of

if TYPE_CHECKING:
    import torch

PORT = "BENCHMARKER_RANK_PORT"
"""Variable in which rank 0 tells the others where its store is."""
BEAT_S = 1.0
"""Between two signs of life."""
EXCHANGE_S = 600.0
"""Longest time for one exchange of tensors: ranks that load or compile are not equally fast. A rank that hangs is found
before, by other means."""
STOP = "stop"
"""The message after which a rank ends."""


def is_torchrun() -> bool:
    """Whether torchrun started this process, or what started it."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def store_host() -> str:
    """Where rank 0 is: on this host, or where torchrun says."""
    return os.environ["MASTER_ADDR"] if is_torchrun() else "127.0.0.1"


def own_device(name: str) -> str:
    """The device of this rank: that which rank 0 names, or torchrun's of this host."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if is_torchrun() and name.startswith("cuda") else name


class Store:
    """One connection to the store that all ranks share. A connection that waits answers nobody else, so that every
    thread and every process group has its own."""

    def __init__(self, port: int, *, is_server: bool = False) -> None:
        """Connect.

        Args:
            port: Where the server listens; 0 to take a free port.
            is_server: Whether it is this process that holds the values.
        """
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self.torch_store = TCPStore(store_host(), port, is_master=is_server, wait_for_workers=False)
        self.port: int = self.torch_store.port

    def put(self, key: str, value: Any) -> None:
        """Set a key to a value that JSON has."""
        self.torch_store.set(key, json.dumps(value))

    def read(self, key: str) -> Any:
        """The value of a key; None where it is not set."""
        return json.loads(self.torch_store.get(key)) if self.torch_store.check([key]) else None

    def take(self, key: str) -> Any:
        """The value of a key, as soon as it is set; waits for as long as the server lives."""
        self.torch_store.wait([key], timedelta(days=1))
        return json.loads(self.torch_store.get(key))


class Rank:
    """This process among the ranks, as what it does for rank 0 sees it."""

    def __init__(self, number: int, count: int, store: Store, device: Device) -> None:
        self.number = number
        """From 0, which is the process that measures."""
        self.count = count
        self.device = device
        self._store = store
        self._messages = 0

    def serve(self, answer: Callable[[Any], Any]) -> None:
        """Answer rank 0's messages until it says that this is the end.

        Args:
            answer: Takes a message and returns what JSON has. A BenchmarkerError that it raises is an answer too, and
                the next message is taken; anything else ends this rank, which rank 0 is told.
        """
        while (message := self._store.take(said(self._messages))) != STOP:
            self._store.put(answered(self.number, self._messages), _answer(answer, message, self.device))
            self._messages += 1


def said(number: int) -> str:
    """Key of a message of rank 0."""
    return f"said/{number}"


def answered(rank: int, number: int) -> str:
    """Key of a rank's answer to a message."""
    return f"answered/{rank}/{number}"


def beats(rank: int) -> str:
    """Key of a rank's signs of life, which it counts up."""
    return f"beats/{rank}"


def failed(rank: int) -> str:
    """Key under which a rank says why it ends."""
    return f"failed/{rank}"


def here(rank: int) -> str:
    """Key that says that a rank can join the others."""
    return f"here/{rank}"


TASK = "task"
"""Key of what the ranks were started for."""


def _answer(answer: Callable[[Any], Any], message: Any, device: Device) -> dict[str, Any]:
    try:
        return {"answer": answer(message)}
    except BenchmarkerError as error:
        return {"error": str(error), "kind": kind_of(error, device)}


@contextlib.contextmanager
def process_group(number: int, count: int, port: int, device: str) -> Iterator[None]:
    """Join the process group of all ranks, and leave it at the end.

    Args:
        device: This rank's, as torch names it.
    """
    import torch
    import torch.distributed as dist

    place = torch.device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    dist.init_process_group(
        "nccl" if place.type == "cuda" else "gloo",
        store=dist.PrefixStore("group", Store(port).torch_store),  # type: ignore[attr-defined]
        rank=number,
        world_size=count,
        timeout=timedelta(seconds=EXCHANGE_S),
        # Connects now, and not in the first exchange, which would be a part of what is measured.
        device_id=place if place.type == "cuda" else None,
    )
    with _variables(number, count, place):
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


@contextlib.contextmanager
def _variables(number: int, count: int, device: torch.device) -> Iterator[None]:
    """What torchrun would have set: transformers reads its device in them."""
    local = number if device.index is None else device.index
    values = {"RANK": str(number), "WORLD_SIZE": str(count), "LOCAL_RANK": str(local)}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def barrier(device: Device) -> None:
    """Wait until every rank is here, with its device drained."""
    import torch.distributed as dist

    dist.barrier()
    device.synchronize()


def _beat(number: int, port: int) -> None:
    """Count up for as long as this process runs; the server's end is this process's."""
    store = Store(port).torch_store
    pause = threading.Event()
    while True:
        store.add(beats(number), 1)
        pause.wait(BEAT_S)


def main() -> None:
    """Be one rank of those that rank 0 started, until it says that this is the end."""
    end_with_parent()
    number, port = int(os.environ["RANK"]), int(os.environ[PORT])
    store = Store(port)
    threading.Thread(target=_beat, args=(number, port), daemon=True).start()
    task, device = store.read(TASK), None
    try:
        device = find_device(own_device(task["devices"][number]))
        rank = Rank(number, len(task["devices"]), store, device)
        store.put(here(number), True)
        for other in range(rank.count):
            store.take(here(other))
        with process_group(number, rank.count, port, device.torch_name):
            imported(task["target"])(rank, task["arguments"])
    except BaseException as error:  # noqa: BLE001
        kind = "other" if device is None else kind_of(error, device)
        store.put(failed(number), {"kind": kind, "reason": sentence_of(error)})
        traceback.print_exc()
        # Not through the group's end, which waits for the other ranks.
        os._exit(1)


if __name__ == "__main__":
    main()
