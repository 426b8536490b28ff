"""Start of a worker's child processes: as new interpreters, or with `--shared-imports` as forks of a round's server.

    python -m benchmarker.sweep.fork_server DESCRIPTOR MODULE...

Importing torch and transformers takes seconds, on a small model more than the measurements. A fork has the imported
modules; its memory, threads, compilers and device are its own, because the server uses none of them. Each round has a
new server, so that rounds stay independent of each other; multiprocessing's server lives as long as its parent.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from subprocess import DEVNULL
from typing import TYPE_CHECKING

from benchmarker.core.process import FORKED, PARENT, end_with_parent, no_garbage_collection

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload

SERVER = "benchmarker.sweep.fork_server"
WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Variables that keep numpy, and Arrow (which pandas imports), from starting threads at import. Only the fork server
has these variables."""
DEVICE_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")
"""Prefixes of drivers' device files. A fork cannot use one that its parent opened."""
Request = tuple[str, list[str], list[str]]
"""Module to run in a fork, its arguments, and variables to remove. The output file's descriptor is sent after it."""
DEAD = (EOFError, ConnectionResetError, BrokenPipeError)
"""Errors of a connection to a process that has ended."""


class Starter:
    def __init__(
        self,
        modules: Sequence[str] = (),
        *,
        variables: Mapping[str, str] | None = None,
        print_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Prepare a starter of children with these `variables`; a fork server per round imports `modules`, if any."""
        self._modules, self._variables, self._print_line = list(modules), dict(variables or {}), print_line
        self._server: _Server | None = None
        self._round: int | None = None

    def start(self, command: Sequence[str], output: int, *, round_number: int | None) -> ChildProcess:
        """Start a child in a new session. It writes to the descriptor `output`, which the caller closes."""
        if tuple(command[:2]) == (sys.executable, "-m") and (server := self._server_of(round_number)):
            return server.fork(command[2], command[3:], output)
        variables = self._environment()
        return subprocess.Popen(
            command, stdin=DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=variables
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
            count, problem = server.imported
            if problem is None:
                self._server, self._round = server, round_number
                return server
            server.close()
            self._modules = self._modules[:count]
            self._print_line(f"{problem}: each process imports that itself")
        return None

    def _environment(self) -> dict[str, str]:
        # Python's output to a pipe is buffered otherwise, and lines appear after a few thousand bytes.
        return {**os.environ, **self._variables, "PYTHONUNBUFFERED": "1", PARENT: str(os.getpid())}


def shared_modules(workload: Workload, *, shared_imports: bool) -> list[str]:
    if not shared_imports:
        return []
    return ["benchmarker.execution.single_run", type(workload).__module__, *workload.imports]


class _Server:
    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._connection, other = Pipe()
        self._added = [name for name in WITHOUT_THREADS if name not in environment]
        with other:
            command = [sys.executable, "-m", SERVER, str(other.fileno()), *modules]
            pipes, variables = [other.fileno()], {**WITHOUT_THREADS, **environment}
            self._process = subprocess.Popen(
                command,
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
                start_new_session=True,
                pass_fds=pipes,
                env=variables,
            )
        self.imported: tuple[int, str | None] = (0, "importing the libraries ended a process")
        """Number of usable modules, and why a process with the next module cannot be forked; None if all are usable."""
        with contextlib.suppress(*DEAD):
            self.imported = self._connection.recv()

    def fork(self, module: str, arguments: Sequence[str], output: int) -> _Fork:
        try:
            self._connection.send((module, list(arguments), self._added))
            send_handle(self._connection, output, self._process.pid)
            return _Fork(self._connection.recv(), self._connection)
        except DEAD as error:
            raise ChildProcessError("the fork server died") from error

    def close(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()


class _Fork:
    def __init__(self, pid: int, connection: Connection) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._connection = connection

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not self._connection.poll(timeout):
                raise subprocess.TimeoutExpired([SERVER], timeout or 0.0)
            # If the server has died, its fork was killed too.
            code = -signal.SIGKILL
            with contextlib.suppress(*DEAD):
                code = self._connection.recv()
            self.returncode = code
        return self.returncode


ChildProcess = subprocess.Popen[bytes] | _Fork
"""Child process. Its `pid` is also the id of its session."""


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


def serve(connection: Connection) -> Request | None:
    """Fork for each request until the connection closes; return the request in a fork, and None in the server."""
    while True:
        try:
            request: Request = connection.recv()
            output = recv_handle(connection)
        except DEAD:
            return None
        process = os.fork()
        if process == 0:
            connection.close()
            _become(output)
            return request
        os.close(output)
        connection.send(process)
        _, status = os.waitpid(process, 0)
        connection.send(os.waitstatus_to_exitcode(status))


def _become(output: int) -> None:
    os.setsid()
    streams = []
    for descriptor, errors in ((1, "strict"), (2, "backslashreplace")):
        os.dup2(output, descriptor)
        raw = open(descriptor, "wb", buffering=0, closefd=False)  # noqa: SIM115  # open as long as the process
        streams.append(io.TextIOWrapper(raw, encoding=sys.stdout.encoding, errors=errors, write_through=True))
    os.close(output)
    sys.stdout, sys.stderr = streams
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ[PARENT] = str(os.getppid())
    os.environ[FORKED] = "1"


def main() -> None:
    """Import the modules and serve requests; in each fork, run `python -m MODULE ARGUMENTS`."""
    end_with_parent()
    # The sweep handles Ctrl-C; it ends this process by closing the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection, modules = Connection(int(sys.argv[1])), sys.argv[2:]
    with no_garbage_collection():
        for number, module in enumerate(modules):
            if problem := why_unfit(module):
                connection.send((number, problem))
                return
    connection.send((len(modules), None))
    gc.freeze()
    if request := serve(connection):
        module, sys.argv[1:], unset = request
        for name in unset:
            del os.environ[name]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
