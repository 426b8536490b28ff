"""Rank: one of several processes that compute together, each on its own device.

Rank 0 measures. It starts the other ranks and sends them messages through a store (torch's TCPStore). Tensors go
through a process group. `python -m benchmarker.distributed.rank` runs a rank other than 0.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from benchmarker.core.errors import BenchmarkerError, sentence_of
from benchmarker.core.process import NO_MULTICAST, end_with_parent
from benchmarker.hardware.device import Device, error_kind_of, find_device

PORT = "BENCHMARKER_RANK_PORT"
"""Environment variable with the port of rank 0's store."""
BEAT_S = 1.0
"""Seconds between two heartbeats."""
EXCHANGE_S = 600.0
"""Longest time of one exchange of tensors: ranks that load or compile differ in speed."""
STOP = "stop"
TASK = "task"


class Store:
    """Connection to the store of all ranks. `take` blocks it, so each thread and process group opens its own."""

    def __init__(self, port: int, *, is_server: bool = False) -> None:
        host = os.environ["MASTER_ADDR"] if dist.is_torchelastic_launched() else "127.0.0.1"
        self.torch_store = dist.TCPStore(host, port, is_master=is_server, wait_for_workers=False)  # type: ignore[attr-defined]
        self.port: int = self.torch_store.port

    def put(self, key: str, value: Any) -> None:
        self.torch_store.set(key, json.dumps(value))

    def read(self, key: str) -> Any:
        return json.loads(self.torch_store.get(key)) if self.torch_store.check([key]) else None

    def take(self, key: str) -> Any:
        """Return the value of a key as soon as it is set."""
        self.torch_store.wait([key], timedelta(days=1))
        return json.loads(self.torch_store.get(key))


def key(kind: str, *numbers: int) -> str:
    """Return a key of the store: `key("answer", 1, 5)` is `answer/1/5`.

    message/N: rank 0's message N. answer/RANK/N: a rank's answer to message N. beats/RANK: count of heartbeats.
    failure/RANK: reason why a rank ended. ready/RANK: set when a rank can join the process group.
    """
    return "/".join((kind, *map(str, numbers)))


@dataclass(frozen=True)
class Rank:
    number: int
    count: int
    store: Store
    device: Device

    def serve(self, answer: Callable[[Any], Any]) -> None:
        """Answer rank 0's messages until it sends `STOP`. Errors other than BenchmarkerError end this rank."""
        for number in itertools.count():
            message = self.store.take(key("message", number))
            if message == STOP:
                return
            try:
                reply = {"answer": answer(message)}
            except BenchmarkerError as error:
                reply = {"error": str(error), "kind": error_kind_of(error, self.device)}
            self.store.put(key("answer", self.number, number), reply)


@contextlib.contextmanager
def process_group(number: int, count: int, port: int, device: str) -> Iterator[None]:
    os.environ.update(NO_MULTICAST)
    rank_device = torch.device(device)
    if rank_device.type == "cuda":
        torch.cuda.set_device(rank_device)
    dist.init_process_group(
        "nccl" if rank_device.type == "cuda" else "gloo",
        store=dist.PrefixStore("group", Store(port).torch_store),  # type: ignore[attr-defined]
        rank=number,
        world_size=count,
        timeout=timedelta(seconds=EXCHANGE_S),
        # NCCL connects now if a device is given, instead of in the first exchange, which may be timed.
        device_id=rank_device if rank_device.type == "cuda" else None,
    )
    local = number if rank_device.index is None else rank_device.index
    values = {"RANK": str(number), "WORLD_SIZE": str(count), "LOCAL_RANK": str(local)}
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        try:
            if dist.is_initialized():
                dist.destroy_process_group()
        finally:
            for name in values:
                os.environ.pop(name, None)
            os.environ.update(before)


def barrier(device: Device) -> None:
    dist.barrier()
    device.synchronize()


def _beat(number: int, port: int) -> None:
    store = Store(port).torch_store
    pause = threading.Event()
    while True:
        store.add(key("beats", number), 1)
        pause.wait(BEAT_S)


def main() -> None:
    """Run a rank that rank 0 started, until rank 0 sends `STOP`."""
    end_with_parent()
    number, port = int(os.environ["RANK"]), int(os.environ[PORT])
    store = Store(port)
    threading.Thread(target=_beat, args=(number, port), daemon=True).start()
    task, device = store.read(TASK), None
    try:
        name = task["devices"][number]
        if dist.is_torchelastic_launched() and name.startswith("cuda"):
            name = f"cuda:{os.environ['LOCAL_RANK']}"
        device = find_device(name)
        rank = Rank(number, len(task["devices"]), store, device)
        store.put(key("ready", number), True)
        for other in range(rank.count):
            store.take(key("ready", other))
        with process_group(number, rank.count, port, device.torch_name):
            module = importlib.import_module(task["module"])
            getattr(module, task["function"])(rank, task["arguments"])
    except BaseException as error:  # noqa: BLE001
        kind = "other" if device is None else error_kind_of(error, device)
        store.put(key("failure", number), {"kind": kind, "reason": sentence_of(error)})
        traceback.print_exc()
        # Leaving the process group would wait for the other ranks.
        os._exit(1)


if __name__ == "__main__":
    main()
