"""Fork server: a process that imports the libraries of a round's processes and is forked for each of them.

    python -m benchmarker.execution.fork_server SOCKET MODULE...

Importing torch and transformers takes seconds, on a small model more than the measurements. The server imports them
once per round. A fork has the imported modules; its memory, threads, compilers and device are its own, because the
server uses none of them. multiprocessing's fork server lives as long as its parent; here each round has a new server,
so that rounds stay independent of each other.

The socket carries JSON objects. The server first sends `{"imported": number of modules, "problem": ...}`; the problem
is the reason for which the next module makes the process unfit to be forked, or null. For each request, `{"module":
..., "arguments": [...], "unset": [variables]}` with the descriptor of the output file, the server sends `{"process":
number}`, and when that process ends `{"code": exit code}`, negative for a signal.
"""

from __future__ import annotations

import gc
import io
import json
import os
import runpy
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from benchmarker.core.process import FORKED, PARENT, end_with_parent, no_garbage_collection

MESSAGE_BYTES = 1 << 16
DEVICE_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")
"""Prefixes of drivers' device files. A fork cannot use one that its parent opened."""


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
    """Return the open device files of a GPU's driver."""
    links = [_target(link) for link in Path("/proc/self/fd").iterdir()]
    return sorted(name for name in links if name.startswith(DEVICE_FILES))


def other_threads() -> list[str]:
    """Return the names of all threads except the first, including threads of C libraries."""
    tasks = Path("/proc/self/task").iterdir()
    return sorted(_thread_name(task) for task in tasks if task.name != str(os.getpid()))


def _thread_name(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:
        # The thread has ended.
        return ""


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


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
    """Return a standard stream that writes at once. The inherited one is set up for a seekable file."""
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
