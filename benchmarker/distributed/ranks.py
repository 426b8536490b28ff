"""Several processes that compute together, seen from rank 0, the process that measures.

    with open_ranks(function, arguments, devices=["cuda:0", "cuda:1"], device=device) as ranks:
        result, answers = ranks.together({"do": "add"}, add, kind="add")

Each other rank runs the function, which answers messages (distributed/rank.py). A rank that dies, hangs or runs out of
memory leaves the others waiting in an exchange of tensors. So a thread checks twice a second whether each process runs
and sends heartbeats. If not, all ranks but 0 are killed, rank 0's exchange is aborted, and a RankError names the rank.

On several hosts, `torchrun ... -m benchmarker run context_parallel ...` starts one process for each rank, which all run
the same command. Each process other than rank 0's starts its rank whenever rank 0 opens ranks (see `follow`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, TypeVar

import torch
import torch.distributed as dist

from benchmarker.core.errors import DeviceError, ErrorKind, ProcessError, UnsupportedError, first_line
from benchmarker.core.process import PARENT
from benchmarker.distributed.rank import PORT, STOP, TASK, Rank, Store, key, process_group
from benchmarker.hardware.device import Device

TICK_S = 0.5
SILENT_S = 15.0
FREED_S = 5.0
CLOSE_S = 5.0
LATE = "hangs: its part of the work takes several times as long as ever"
FIRST_S = 300.0
"""Time limit of the first message of a kind, and of starting the ranks."""
LEAST_S = 20.0
SLOWER = 5
"""Time limit of a later message: this multiple of its kind's longest time so far, but at least LEAST_S."""
POLL_S = 0.002

LEADS = "BENCHMARKER_LEADS"
"""Environment variable with torchrun's number of processes; WORLD_SIZE is changed to the number of open ranks."""
# Keys of torchrun's store: how often rank 0 opened ranks; for each time, their count and port (or STOP), whether they
# must end at once, and how each rank ended.
OPENINGS = "benchmarker/openings"
OPENING = "benchmarker/opening"
KILL = "benchmarker/kill"
ENDED = "benchmarker/ended"

Result = TypeVar("Result")


class RankError(ProcessError):
    def __init__(self, rank: int, reason: str, kind: ErrorKind) -> None:
        super().__init__(f"rank {rank}: {reason}", kind)


class LocalProcess:
    """A rank's process on this host."""

    def __init__(self, number: int, port: int) -> None:
        # The ranks of a CPU divide the number of threads that this process chose.
        threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            # In this process's group, so that a signal to the group ends the rank too.
            [sys.executable, "-m", "benchmarker.distributed.rank"],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **threads, "RANK": str(number), PORT: str(port), PARENT: str(os.getpid())},
        )

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of the process, and kill it after `timeout_s`. To be called once."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        self._process.kill()
        self._process.wait()
        self._output.close()

    def end_words(self) -> str:
        """Return `ended (exit 1): LAST OUTPUT LINE`, or `killed by SIGKILL`."""
        code = self._process.returncode
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended (exit {code})"
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return how if code == -signal.SIGKILL or not lines else f"{how}: {lines[-1].strip()[:300]}"


class TorchrunProcess:
    """A rank's process that torchrun started, on any host."""

    def __init__(self, store: Store, number: int, rank: int) -> None:
        self._store, self._number, self._rank = store, number, rank

    def has_ended(self) -> bool:
        return self._store.read(key(ENDED, self._number, self._rank)) is not None

    def kill(self) -> None:
        """Request that the process which started the rank kills it (`follow`), within TICK_S."""
        with contextlib.suppress(RuntimeError):
            self._store.put(key(KILL, self._number), True)

    def wait(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not self.has_ended() and time.monotonic() < deadline_s:
            time.sleep(TICK_S / 4)

    def end_words(self) -> str:
        return str(self._store.read(key(ENDED, self._number, self._rank)))


class Ranks:
    """Control of all ranks by rank 0. A thread watches the processes of ranks 1 and higher."""

    def __init__(self, store: Store, device: Device, count: int, stuck: Callable[[RankError], None]) -> None:
        self.count, self._store, self._device, self._stuck = count, store, device, stuck
        self._messages = 0
        self._longest_s: dict[str, float] = {}
        self._failure: RankError | None = None
        self._awaited: tuple[float, int] | None = None
        """Deadline (`time.monotonic`) and number of the message in progress; None if there is none."""
        self._is_closing = threading.Event()
        self._processes: Mapping[int, LocalProcess | TorchrunProcess] = (
            request_ranks(count, store.port)
            if dist.is_torchelastic_launched()
            else {number: LocalProcess(number, store.port) for number in range(1, count)}
        )
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def together(
        self, message: Mapping[str, Any], work: Callable[[], Result], *, kind: str
    ) -> tuple[Result, list[Any]]:
        """Send `message` to the other ranks, run `work` on rank 0, and return its result and the other ranks' answers.
        The time limit follows from earlier messages of the same `kind`. Raises RankError."""
        began_s = time.monotonic()
        longest_s = self._longest_s.get(kind)
        with self.guarded(FIRST_S if longest_s is None else max(LEAST_S, SLOWER * longest_s)):
            self._store.put(key("message", self._messages), message)
            result = work()
            answers = []
            for rank in range(1, self.count):
                answer = self._take(key("answer", rank, self._messages))
                if "error" in answer:
                    raise RankError(rank, answer["error"], answer["kind"])
                answers.append(answer["answer"])
        self._messages += 1
        self._longest_s[kind] = max(longest_s or 0.0, time.monotonic() - began_s)
        return result, answers

    def join(self, devices: Sequence[str]) -> contextlib.AbstractContextManager[None]:
        """Wait until all ranks are ready, and return the context of their process group."""
        self._store.put(key("ready", 0), True)
        for number in range(1, self.count):
            self._take(key("ready", number))
        return process_group(0, self.count, self._store.port, devices[0])

    def close(self) -> None:
        self._is_closing.set()
        if self._failure:
            break_off()
        else:
            self._store.put(key("message", self._messages), STOP)

    def wait(self) -> None:
        """Wait until all processes have ended, and kill those that take too long."""
        self._is_closing.set()
        deadline_s = time.monotonic() + CLOSE_S
        for process in self._processes.values():
            process.wait(max(0.0, deadline_s - time.monotonic()))
        self._watcher.join(CLOSE_S)

    @contextmanager
    def guarded(self, limit_s: float) -> Iterator[None]:
        if self._failure:
            raise self._failure
        self._awaited = time.monotonic() + limit_s, self._messages
        try:
            yield
        except UnsupportedError:
            # All ranks raise this error, and can take the next message.
            self._messages += 1
            raise
        except Exception as error:
            if not self._device.is_out_of_memory(error):
                # If a rank that ended is the cause, the watcher finds it soon.
                deadline_s = time.monotonic() + 4 * TICK_S
                while self._failure is None and time.monotonic() < deadline_s:
                    time.sleep(TICK_S / 4)
                if self._failure:
                    raise self._failure from error
            self._end(RankError(0, f"{first_line(error)}; the ranks cannot go on", "other"))
            raise
        except KeyboardInterrupt:
            self._end(RankError(0, "interrupted", "interrupted"))
            raise
        finally:
            self._awaited = None
        if self._failure:
            raise self._failure

    def _take(self, key: str) -> Any:
        while self._failure is None:
            if (value := self._store.read(key)) is not None:
                return value
            time.sleep(POLL_S)
        raise self._failure

    def _end(self, failure: RankError) -> None:
        self._failure = self._failure or failure
        for process in self._processes.values():
            process.kill()

    def _watch(self) -> None:
        store = Store(self._store.port)
        beats: dict[int, tuple[int | None, float]] = dict.fromkeys(self._processes, (None, time.monotonic()))
        while not self._is_closing.wait(TICK_S):
            failures = [failure for number in beats if (failure := self._checked(store, number, beats))]
            if failures:
                # Ranks that lost the connection to a failed rank report errors of the kind `other`.
                failure = min(failures, key=lambda failure: failure.kind == "other")
                self._end(failure)
                self._free(failure)
                return

    def _checked(self, store: Store, number: int, beats: dict[int, tuple[int | None, float]]) -> RankError | None:
        process = self._processes[number]
        if reported := store.read(key("failure", number)):
            return RankError(number, reported["reason"], reported["kind"])
        if process.has_ended():
            return RankError(number, process.end_words(), "crash")
        beat, now = store.read(key("beats", number)), time.monotonic()
        if beat != beats[number][0]:
            beats[number] = beat, now
        elif beat is not None and now - beats[number][1] > SILENT_S:
            return RankError(number, f"gave no sign of life for {SILENT_S:g} s", "timeout")
        until_s, message = self._awaited or (now, 0)
        is_late = now > until_s and store.read(key("answer", number, message)) is None
        return RankError(number, LATE, "timeout") if is_late else None

    def _free(self, failure: RankError) -> None:
        break_off()
        deadline_s = time.monotonic() + FREED_S
        while self._awaited and time.monotonic() < deadline_s:
            time.sleep(TICK_S / 4)
        if self._awaited:
            # Rank 0 is stuck inside the driver or a library, which no exception reaches.
            self._stuck(failure)
            os._exit(1)


def break_off() -> None:
    if dist.is_initialized():
        # NCCL alone supports aborting; gloo raises an error by itself if other ranks are gone.
        with contextlib.suppress(RuntimeError):
            dist.distributed_c10d._abort_process_group()


@contextmanager
def open_ranks(
    function: Callable[[Rank, dict[str, Any]], None],
    arguments: Mapping[str, Any],
    *,
    devices: Sequence[str],
    device: Device,
    stuck: Callable[[RankError], None] = lambda failure: None,
) -> Iterator[Ranks]:
    """Start the other ranks, which run `function` on `devices[1:]`, and join their process group. Raises RankError.

    `stuck` is called if rank 0 hangs in an exchange with a failed rank, just before the process is ended.
    """
    store = Store(0, is_server=True)
    name = {"module": function.__module__, "function": function.__qualname__}
    store.put(TASK, {**name, "arguments": arguments, "devices": list(devices)})
    with contextlib.ExitStack() as stack:
        ranks = Ranks(store, device, len(devices), stuck)
        stack.callback(ranks.wait)
        with ranks.guarded(FIRST_S):
            stack.enter_context(ranks.join(devices))
        stack.callback(ranks.close)
        yield ranks


def world_size() -> int:
    return int(os.environ.get(LEADS) or os.environ["WORLD_SIZE"])


def hosts() -> int:
    return int(os.environ.get("GROUP_WORLD_SIZE", "1")) if dist.is_torchelastic_launched() else 1


def agent_store() -> Store:
    """Connect to the store of torchrun's processes. Rank 0 serves it if torchrun's agent does not."""
    is_server = os.environ["RANK"] == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return Store(int(os.environ["MASTER_PORT"]), is_server=is_server)


def request_ranks(count: int, port: int) -> dict[int, TorchrunProcess]:
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


@contextmanager
def leading() -> Iterator[None]:
    os.environ[LEADS] = os.environ["WORLD_SIZE"]
    # Kept open, because this process may be the store's server.
    store = agent_store()
    try:
        yield
    finally:
        store.put(key(OPENING, store.torch_store.add(OPENINGS, 1) - 1), STOP)
