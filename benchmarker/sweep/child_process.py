"""How a sweep starts its children: anew, or as forks of a process that has imported what they all need.

Of one round, all children are forks of one process (see `benchmarker.execution.fork_server`); the next round has
another, which imports again. So rounds stay as independent of each other as if each child had been started anew.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from benchmarker.core.console import Terminal
from benchmarker.core.errors import SpecError
from benchmarker.core.process import PARENT
from benchmarker.execution.fork_server import MESSAGE_BYTES

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload

SERVER = "benchmarker.execution.fork_server"
WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Variables that keep numpy, and Arrow (which pandas imports), from starting threads when they are imported; set in a
process that is forked, and not in its forks."""


class ChildProcess(Protocol):
    """What a sweep asks of a child; a `subprocess.Popen` is one."""

    pid: int
    """Of the process, and of the session that it leads."""

    @property
    def returncode(self) -> Any:
        """Its exit code, negative for a signal; None before its end."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """


class Starter(Protocol):
    """Starts children."""

    def start(self, command: Sequence[str], output: int, *, round_number: int | None) -> ChildProcess:
        """Start a child.

        Args:
            output: Descriptor of the file that it prints into; the caller closes it.
            round_number: The round that it measures; None for what is measured after all rounds.
        """

    def close(self) -> None:
        """End what is kept for further children."""


class StartedAnew:
    """Every child is a new process, which imports everything itself."""

    def start(self, command: Sequence[str], output: int, *, round_number: int | None) -> ChildProcess:  # noqa: ARG002
        """See `Starter`."""
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=_environment(),
        )

    def close(self) -> None:
        """Nothing is kept."""


class Forked:
    """Children are forks of one process a round, as far as the modules let it be forked; else they are started anew."""

    def __init__(self, modules: Sequence[str], terminal: Terminal) -> None:
        self._modules, self._terminal = list(modules), terminal
        self._server: _Server | None = None
        self._round: int | None = None

    def start(self, command: Sequence[str], output: int, *, round_number: int | None) -> ChildProcess:
        """See `Starter`."""
        if tuple(command[:2]) == (sys.executable, "-m") and (server := self._server_of(round_number)):
            return server.fork(command[2], command[3:], output)
        return StartedAnew().start(command, output, round_number=round_number)

    def close(self) -> None:
        """End the process that is forked."""
        if self._server:
            self._server.close()
        self._server = None

    def _server_of(self, round_number: int | None) -> _Server | None:
        """The server of this round; None where nothing can be imported that leaves it fit to be forked."""
        if self._server and self._round == round_number:
            return self._server
        self.close()
        while self._modules:
            server = _Server(self._modules)
            count, problem = server.imported()
            if problem is None:
                self._server, self._round = server, round_number
                return server
            server.close()
            self._modules = self._modules[:count]
            self._terminal.line(f"{problem}: each process imports that itself")
        return None


def starter_of(workload: Workload, terminal: Terminal, *, shared_imports: bool) -> Starter:
    """Starts a sweep's children.

    Args:
        shared_imports: Whether they are to be forks of a process that imports for all of a round.
    """
    if not shared_imports:
        return StartedAnew()
    if sys.platform != "linux":
        raise SpecError("--shared-imports: needs Linux, where a process can be forked; leave it out")
    own = ("benchmarker.execution.single_run", type(workload).__module__)
    return Forked([*own, *workload.imports], terminal)


class _Server:
    """The process that is forked, and the socket to it."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", SERVER, str(other.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[other.fileno()],
                env={**WITHOUT_THREADS, **_environment()},
            )

    def imported(self) -> tuple[int, str | None]:
        """Wait for the imports: how many leave it fit to be forked, and what is wrong with the next one."""
        answer = self.answer(None)
        return (answer["imported"], answer["problem"]) if answer else (0, "importing the libraries ended a process")

    def fork(self, module: str, arguments: Sequence[str], output: int) -> ChildProcess:
        """A fork that does what `python -m module arguments` does."""
        added = [name for name in WITHOUT_THREADS if name not in os.environ]
        request = {"module": module, "arguments": list(arguments), "unset": added}
        socket.send_fds(self._channel, [json.dumps(request).encode()], [output])
        answer = self.answer(None)
        if answer is None:
            raise ChildProcessError("the process that is forked for each child died")
        return _Fork(answer["process"], self)

    def answer(self, timeout_s: float | None) -> dict[str, Any] | None:
        """The next message; None if the server is dead.

        Raises:
            TimeoutError: There is none yet.
        """
        if not select.select([self._channel], [], [], timeout_s)[0]:
            raise TimeoutError
        try:
            message = self._channel.recv(MESSAGE_BYTES)
        except ConnectionResetError:
            return None
        return json.loads(message) if message else None

    def close(self) -> None:
        """End it; it has no child any more."""
        self._channel.close()
        self._process.kill()
        self._process.wait()


class _Fork:
    """One fork, whose end the server tells."""

    def __init__(self, pid: int, server: _Server) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def wait(self, timeout: float | None = None) -> int:
        """See `ChildProcess`."""
        if self.returncode is None:
            try:
                answer = self._server.answer(timeout)
            except TimeoutError as error:
                raise subprocess.TimeoutExpired([SERVER], timeout or 0.0) from error
            # A child ends with the process that it was forked of.
            self.returncode = answer["code"] if answer else -signal.SIGKILL
        return self.returncode


def _environment() -> dict[str, str]:
    # A pipe would keep the child's lines until there are a few thousand bytes of them.
    return {**os.environ, "PYTHONUNBUFFERED": "1", PARENT: str(os.getpid())}
