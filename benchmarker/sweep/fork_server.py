"""Start of a worker's child processes: as new interpreters, or with `--shared-imports` as forks of a round's server.

    python -m benchmarker.sweep.fork_server SOCKET MODULE...

Importing torch and transformers takes seconds, on a small model more than the measurements. A fork has the imported
modules; its memory, threads, compilers and device are its own, because the server uses none of them. Each round has a
new server, so that rounds stay independent of each other; multiprocessing's server lives as long as its parent.

The socket carries JSON objects. The server first sends `{"imported": number of modules, "problem": ...}`; the problem
is the reason for which the next module makes the process unfit to be forked, or null. For each request, `{"module":
..., "arguments": [...], "unset": [variables]}` with the descriptor of the output file, the server sends `{"process":
number}`, and when that process ends `{"code": exit code}`, negative for a signal.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from benchmarker.core.errors import SpecError
from benchmarker.core.process import FORKED, PARENT, end_with_parent, no_garbage_collection

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload

SERVER = "benchmarker.sweep.fork_server"
WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Variables that keep numpy, and Arrow (which pandas imports), from starting threads at import. The fork server has
them, its forks do not."""
MESSAGE_BYTES = 1 << 16
DEVICE_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")
"""Prefixes of drivers' device files. A fork cannot use one that its parent opened."""


class Starter:
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
        """
        self._modules, self._variables, self._print_line = list(modules), dict(variables or {}), print_line
        self._server: _Server | None = None
        self._round: int | None = None

    def start(self, command: Sequence[str], output: int, *, round_number: int | None) -> ChildProcess:
        """Start a child in a session of its own, which writes to the descriptor `output`; the caller closes it."""
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
    if not shared_imports:
        return []
    if sys.platform != "linux":
        raise SpecError("--shared-imports: needs Linux, where a process can be forked; leave it out")
    return ["benchmarker.execution.single_run", type(workload).__module__, *workload.imports]


class _Server:
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


def why_unfit(module: str) -> str | None:
    """Import a module; return the reason if the process cannot be forked afterwards."""
    try:
        import_module(module)
    except Exception as error:  # noqa: BLE001  # the process that needs the module reports the error
        return f"{module} cannot be imported ({type(error).__name__})"
    if opened := device_files():
        return f"{module} opens {opened[0]} when it is imported"
    if others := other_threads():
        return f"{module} starts a thread ({others[0]}) when it is imported"
    return None


def device_files() -> list[str]:
    names = []
    for link in Path("/proc/self/fd").iterdir():
        # The descriptor of the listing is closed already.
        with contextlib.suppress(OSError):
            names.append(str(link.readlink()))
    return sorted(name for name in names if name.startswith(DEVICE_FILES))


def other_threads() -> list[str]:
    """Return the names of all threads except the first, including threads of C libraries."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        # A thread may have ended.
        with contextlib.suppress(OSError):
            names += [(task / "comm").read_text().strip()] * (task.name != str(os.getpid()))
    return sorted(names)


def serve(channel: socket.socket) -> dict[str, Any] | None:
    """Fork for each request until the socket closes; return the request in a fork, and None in the server."""
    while True:
        message, files, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 1)
        if not message:
            return None
        request: dict[str, Any] = json.loads(message)
        process = os.fork()
        if process == 0:
            channel.close()
            _become(files[0])
            return request
        os.close(files[0])
        _send(channel, process=process)
        _, status = os.waitpid(process, 0)
        _send(channel, code=os.waitstatus_to_exitcode(status))


def _become(output: int) -> None:
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout = _text_stream(1, errors="strict")
    sys.stderr = _text_stream(2, errors="backslashreplace")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ[PARENT] = str(os.getppid())
    os.environ[FORKED] = "1"


def _text_stream(descriptor: int, *, errors: str) -> TextIO:
    raw = open(descriptor, "wb", buffering=0, closefd=False)  # noqa: SIM115  # open as long as the process
    return io.TextIOWrapper(raw, encoding=sys.stdout.encoding, errors=errors, write_through=True)


def _send(channel: socket.socket, **message: Any) -> None:
    channel.send(json.dumps(message).encode())


def main() -> None:
    """Import and serve; in each fork, run `python -m MODULE ARGUMENTS`."""
    end_with_parent()
    # The sweep handles Ctrl-C; it ends this process by closing the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[1]))
    with no_garbage_collection():
        for number, module in enumerate(sys.argv[2:]):
            if problem := why_unfit(module):
                _send(channel, imported=number, problem=problem)
                return
    _send(channel, imported=len(sys.argv[2:]), problem=None)
    gc.freeze()
    request = serve(channel)
    if request is not None:
        for name in request["unset"]:
            del os.environ[name]
        sys.argv[1:] = request["arguments"]
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
