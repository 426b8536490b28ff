"""Process of a model server: a free port, a health check with a time limit, a log, and a guaranteed end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarker.core.errors import ErrorKind, ProcessError
from benchmarker.core.process import signal_group

HOST = "127.0.0.1"
POLL_S = 0.1
CLOSE_S = 10.0
READY_S = 1800.0  # The first start of vLLM on a new machine compiles for minutes.
MEMORY_WORDS = ("out of memory", "failed to allocate", "no available memory", "unable to allocate", "larger than the")
"""Parts of a server's log which show that memory ran out at the start."""
EXECUTE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Program that becomes the server. Linux kills the server when this process ends (PR_SET_PDEATHSIG, SIGKILL)."""
PROXY_FREE = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def read(url: str, *, limit_s: float = 5.0) -> str | None:
    """Return the body of a page; None if the server does not answer with it."""
    try:
        with PROXY_FREE.open(url, timeout=limit_s) as answer:
            body: bytes = answer.read()
    except (OSError, ValueError):
        return None
    return body.decode(errors="replace")


def post(url: str, body: Mapping[str, Any], *, limit_s: float = 60.0) -> Any:
    """Return the JSON with which a server answers a request. Raises ProcessError with the first line of its error."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with PROXY_FREE.open(request, timeout=limit_s) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise ProcessError(error.read().decode(errors="replace")[:200]) from None
    except (OSError, ValueError) as error:
        raise ProcessError(f"no answer: {error}") from None


class ServerProcess:
    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        port: int,
        variables: Mapping[str, str] | None = None,
        on_gpu: bool = False,
    ) -> None:
        self.name = name
        self.url = f"http://{HOST}:{port}"
        self._on_gpu = on_gpu
        descriptor, log = tempfile.mkstemp(prefix=f"{name}-", suffix=".log")
        self._log = Path(log)
        with os.fdopen(descriptor, "wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", EXECUTE, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(variables or {}), "PYTHONUNBUFFERED": "1"},
            )
        self._started_s = time.monotonic()

    def wait_ready(self, limit_s: float = READY_S) -> float:
        """Return the seconds from the start of the process until the server was ready. Raises ProcessError."""
        while read(f"{self.url}/health") is None:
            self.check(before="before it was ready")
            if time.monotonic() - self._started_s > limit_s:
                raise self._error(f"was not ready within {limit_s:g} s", "timeout")
            time.sleep(POLL_S)
        return time.monotonic() - self._started_s

    def check(self, *, before: str = "while it was measured", wait_s: float = 0.0) -> None:
        """Raise ProcessError if the server has ended, or ends within `wait_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        if (code := self._process.poll()) is not None:
            raise self._error(f"ended {before} (exit {code})", "crash")

    def _error(self, text: str, kind: ErrorKind) -> ProcessError:
        log = self.log()
        if any(word in log.lower() for word in MEMORY_WORDS):
            text, kind = f"out of memory: it {text}", "oom_gpu" if self._on_gpu else "oom_host"
        return ProcessError(f"{self.name}: {text}: {last_words(log)}; its log is {self._log}", kind)

    def log(self) -> str:
        with contextlib.suppress(OSError):
            return self._log.read_text(encoding="utf-8", errors="replace")
        return ""

    def resident_bytes(self) -> int | None:
        import psutil

        try:
            server = psutil.Process(self._process.pid)
            return sum(process.memory_info().rss for process in (server, *server.children(recursive=True)))
        except psutil.Error:
            return None

    def end(self, *, keep_log: bool) -> None:
        if self._process.poll() is None:
            signal_group(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_S)
        signal_group(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if not keep_log:
            self._log.unlink(missing_ok=True)


def last_words(log: str) -> str:
    """Return the last line that reports an error, and the last line of all."""
    lines = [" ".join(line.split()) for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return " | ".join(dict.fromkeys(line[-90:] for line in (*errors[-1:], *lines[-1:]))) or "it printed nothing"
