"""The driver process of an engine that runs in its own environment, and its protocol.

The engine starts a driver program (external/drivers) and sends it requests, one JSON object per line. The driver
answers each request with one JSON object:

    do        fields                              answer
    open      of the engine                       load_s
    generate  prompt_ids, new_tokens, context     tokens, start_ns, first_ns, last_ns, end_ns, engine_times,
                                                  accepted_tokens
    score     ids, output, together, rows_from    vocabulary, and a file of log-probabilities by decode steps; or rows:
                                                  [id, log-probability] of the likeliest tokens by prefill
    facts                                         version, kv_cache, and fields of ExternalFacts
    start_trace                                   {}
    stop_trace  path                              {}, and the profiler's trace, with annotations of prefill and decode
    close                                         {}

The answer {"error": "one line"} means that the request failed. The driver reads its own monotonic clock around the
engine's work, so that no time includes the pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from benchmarker.core.errors import BenchmarkerError, ProcessError, UnsupportedError
from benchmarker.core.process import NO_MULTICAST, signal_group

CLOSE_S = 5.0
TRACKER_POLLS, POLL_S = 100, 0.02  # Wait of at most 2 s for the processes to end.
READ_BYTES = 1 << 16
OUT_OF_MEMORY = "out of memory"  # First words of a driver's error if memory ran out.


class Driver:
    def __init__(
        self, name: str, command: Sequence[str], *, on_gpu: bool = False, variables: Mapping[str, str] | None = None
    ) -> None:
        self._name = name
        self._on_gpu = on_gpu
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._unread = b""
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
                env={**os.environ, **NO_MULTICAST, **(variables or {}), "PYTHONUNBUFFERED": "1"},
            )
        except OSError as error:
            self._errors.close()
            reason = os.strerror(error.errno or 0)
            raise ProcessError(f"{name}: its driver cannot be started: {command[0]}: {reason}") from error

    def request(self, call: str, *, limit_s: float, **arguments: Any) -> dict[str, Any]:
        """Send a request and wait for its answer. Raises UnsupportedError or ProcessError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": call, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._died(call) from error
        line = self._line(call, limit_s)
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ProcessError(f"{self._name}: its driver answered '{call}' with no JSON object: {_shown(line)}")
        if "error" in answer:
            reason = _shown(str(answer["error"]))
            if not reason.startswith(OUT_OF_MEMORY):
                raise UnsupportedError(f"{self._name}: {reason}")
            raise ProcessError(f"{self._name}: {reason}", "oom_gpu" if self._on_gpu else "oom_host")
        return answer

    def _line(self, call: str, limit_s: float) -> str:
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    self.kill()
                    raise ProcessError(
                        f"{self._name}: no answer to '{call}' within {limit_s:g} s; its driver was ended", "timeout"
                    )
                chunk = os.read(self._process.stdout.fileno(), READ_BYTES)
                if not chunk:
                    raise self._died(call)
                self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def _died(self, call: str) -> ProcessError:
        self.kill()
        self._errors.seek(0)
        lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        reason = _shown(lines[-1]) if lines else "it printed nothing"
        code = self._process.returncode
        return ProcessError(f"{self._name}: its driver ended at '{call}' (exit {code}): {reason}", "crash")

    def close(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(BenchmarkerError):
                self.request("close", limit_s=CLOSE_S)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_S)
        self.kill()
        self._errors.close()

    def kill(self) -> None:
        """End every process of the group. Shared memory that they leave is removed by Python's resource tracker, which
        ignores SIGTERM and ends after the others."""
        signal_group(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            for _ in range(TRACKER_POLLS):
                self._process.poll()  # A process that has ended exists until its exit status is read.
                os.killpg(self._process.pid, 0)
                time.sleep(POLL_S)
        signal_group(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _shown(text: str) -> str:
    return " ".join(text.split())[:300]
