"""Start of a worker's child processes: as new interpreters, or as forks of a process with imported libraries.

With `--shared-imports`, all children of a round are forks of one server (see `benchmarker.execution.fork_server`), and
the next round has a new server. Rounds therefore stay as independent of each other as with new interpreters.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import SpecError
from benchmarker.core.process import PARENT
from benchmarker.execution.fork_server import MESSAGE_BYTES

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload

SERVER = "benchmarker.execution.fork_server"
WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Variables that keep numpy, and Arrow (which pandas imports), from starting threads at import. The fork server has
them, its forks do not."""


class Starter:
    """Starts the children of one worker."""

    def __init__(
        self,
        modules: Sequence[str] = (),
        *,
        variables: Mapping[str, str] | None = None,
        print_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Start nothing yet.

        Args:
            modules: Modules that a fork server imports for all children of a round; none for new interpreters.
            variables: Environment variables of the children besides those of this process.
            print_line: Prints a line.
        """
        self._modules, self._variables, self._print_line = list(modules), dict(variables or {}), print_line
        self._server: _Server | None = None
        self._round: int | None = None

    def start(self, command: Sequence[str], output: int, *, round_number: int | None) -> ChildProcess:
        """Start a child in a session of its own.

        Args:
            output: Descriptor of the file for its standard output and error; the caller closes it.
            round_number: Round that the child measures; None for the measurements after all rounds.
        """
        if tuple(command[:2]) == (sys.executable, "-m") and (server := self._server_of(round_number)):
            return server.fork(command[2], command[3:], output)
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=self._environment(),
        )

    def close(self) -> None:
        """End the fork server."""
        if self._server:
            self._server.close()
        self._server = None

    def _server_of(self, round_number: int | None) -> _Server | None:
        """Return the round's fork server; None if none of the modules can be imported before a fork."""
        if self._server and self._round == round_number:
            return self._server
        self.close()
        while self._modules:
            server = _Server(self._modules, self._environment())
            count, problem = server.imported()
            if problem is None:
                self._server, self._round = server, round_number
                return server
            server.close()
            self._modules = self._modules[:count]
            self._print_line(f"{problem}: each process imports that itself")
        return None

    def _environment(self) -> dict[str, str]:
        # A pipe would hold the child's lines back until a few thousand bytes have collected.
        return {**os.environ, **self._variables, "PYTHONUNBUFFERED": "1", PARENT: str(os.getpid())}


def shared_modules(workload: Workload, *, shared_imports: bool) -> list[str]:
    """Return the modules that a round's fork server imports; none without --shared-imports."""
    if not shared_imports:
        return []
    if sys.platform != "linux":
        raise SpecError("--shared-imports: needs Linux, where a process can be forked; leave it out")
    return ["benchmarker.execution.single_run", type(workload).__module__, *workload.imports]


class _Server:
    """A fork server and the socket to it."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._added = [name for name in WITHOUT_THREADS if name not in environment]
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", SERVER, str(other.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[other.fileno()],
                env={**WITHOUT_THREADS, **environment},
            )

    def imported(self) -> tuple[int, str | None]:
        """Wait for the imports; return the number of usable modules and the problem of the next one."""
        answer = self.answer(None)
        return (answer["imported"], answer["problem"]) if answer else (0, "importing the libraries ended a process")

    def fork(self, module: str, arguments: Sequence[str], output: int) -> _Fork:
        """Fork a process that runs `python -m module arguments`."""
        request = {"module": module, "arguments": list(arguments), "unset": self._added}
        socket.send_fds(self._channel, [json.dumps(request).encode()], [output])
        answer = self.answer(None)
        if answer is None:
            raise ChildProcessError("the fork server died")
        return _Fork(answer["process"], self)

    def answer(self, timeout_s: float | None) -> dict[str, Any] | None:
        """Return the next message; None if the server is dead."""
        if not select.select([self._channel], [], [], timeout_s)[0]:
            raise TimeoutError
        try:
            message = self._channel.recv(MESSAGE_BYTES)
        except ConnectionResetError:
            return None
        return json.loads(message) if message else None

    def close(self) -> None:
        """End the server after its last child."""
        self._channel.close()
        self._process.kill()
        self._process.wait()


class _Fork:
    """A fork; the server reports its end."""

    def __init__(self, pid: int, server: _Server) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            try:
                answer = self._server.answer(timeout)
            except TimeoutError as error:
                raise subprocess.TimeoutExpired([SERVER], timeout or 0.0) from error
            # A child ends with the process that it was forked from.
            self.returncode = answer["code"] if answer else -signal.SIGKILL
        return self.returncode


ChildProcess = subprocess.Popen[bytes] | _Fork
"""A child: `pid` is also the number of its session."""
