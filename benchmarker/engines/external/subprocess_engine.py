"""An engine in a process of its own, which may have another interpreter: how this process speaks to it.

The engine starts a driver program and sends it one JSON object a line; the driver answers each with one:

    do        beside it                           answer
    open      folder, dtype, options, device      {}
    generate  prompt_ids, new_tokens, context     tokens, start_ns, first_ns, last_ns, end_ns
    score     ids, prompt_tokens                  log_probabilities: rows of numbers, or null
    facts                                         kv_cache, tokens_read; where it knows, version and peak_bytes:
                                                  most memory of the process beyond what its libraries took
    close                                         {}

An answer {"error": "one line"} says that it cannot be done. The driver reads its own monotonic clock around the
engine's work, so that no time of the pipe is in it. What it prints to standard error is shown only where it fails.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pydantic import ValidationError

from benchmarker.checkpoints.base import Checkpoint, Progress
from benchmarker.core.errors import BenchmarkerError
from benchmarker.engines.base import Form, Scorer, Scores, TokenIds, TokenSource, UnsupportedError
from benchmarker.engines.external.driver_errors import (
    DriverCrashError,
    DriverError,
    DriverTimeoutError,
    GpuMemoryError,
    HostMemoryError,
)
from benchmarker.measure.clock import Generation
from benchmarker.quantization.base import Options
from benchmarker.schema.engine_facts import EngineFacts

if TYPE_CHECKING:
    from benchmarker.hardware.device import Device

CLOSE_S = 5.0
"""Seconds that a driver has to end by itself once it was asked to."""
READ_BYTES = 1 << 16


OUT_OF_MEMORY = "out of memory"
"""How a driver's error begins where memory ran out, whatever the engine's own words are."""


class Driver:
    """A driver program that is running, in a process group of its own."""

    def __init__(self, name: str, command: Sequence[str], *, on_gpu: bool = False) -> None:
        """Start it.

        Args:
            name: The engine's, for messages.
            command: Interpreter, program and arguments.
            on_gpu: Whether it is a GPU's memory that it may run out of.

        Raises:
            DriverError: It cannot be started.
        """
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
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        except OSError as error:
            self._errors.close()
            reason = os.strerror(error.errno or 0)
            raise DriverError(f"{name}: its driver cannot be started: {command[0]}: {reason}") from error

    def ask(self, what: str, *, limit_s: float, **arguments: Any) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises:
            UnsupportedError: The driver says that it cannot do this.
            DriverCrashError: It died.
            DriverTimeoutError: It took longer than `limit_s`.
            DriverError: It answered no JSON object.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._died(what) from error
        line = self._line(what, limit_s)
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise DriverError(f"{self._name}: its driver answered '{what}' with no JSON object: {_shown(line)}")
        if "error" in answer:
            raise self._refused(_shown(str(answer["error"]).encode()))
        return answer

    def _refused(self, error: str) -> BenchmarkerError:
        """What to raise where it says that it cannot do something."""
        words = f"{self._name}: {error}"
        if not error.startswith(OUT_OF_MEMORY):
            return UnsupportedError(words)
        return GpuMemoryError(words) if self._on_gpu else HostMemoryError(words)

    def _line(self, what: str, limit_s: float) -> bytes:
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    self.kill()
                    raise DriverTimeoutError(
                        f"{self._name}: no answer to '{what}' within {limit_s:g} s; its driver was ended"
                    )
                chunk = os.read(self._process.stdout.fileno(), READ_BYTES)
                if not chunk:
                    raise self._died(what)
                self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _died(self, what: str) -> DriverCrashError:
        """What to raise where it is gone; it is ended for good first."""
        self.kill()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        reason = _shown(lines[-1].encode()) if lines else "it said nothing"
        code = self._process.returncode
        return DriverCrashError(f"{self._name}: its driver ended at '{what}' (exit {code}): {reason}")

    def close(self) -> None:
        """Ask it to end, and end its whole process group."""
        if self._process.poll() is None:
            with contextlib.suppress(BenchmarkerError):
                self.ask("close", limit_s=CLOSE_S)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_S)
        self.kill()
        self._errors.close()

    def kill(self) -> None:
        """End it and whatever it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class SubprocessSource(TokenSource, Scorer):
    """What a driver has opened."""

    is_elsewhere = True

    def __init__(self, name: str, driver: Driver, *, limit_s: float) -> None:
        self._name = name
        self._driver = driver
        self._limit_s = limit_s

    @property
    def scorer(self) -> Scorer:
        return self

    def greedy_tokens(self, ids: TokenIds, new_tokens: int) -> tuple[int, ...]:
        return self.generate([ids], new_tokens).tokens[0]

    def generate(
        self, prompt_ids: Sequence[TokenIds], new_tokens: int, *, context: Sequence[TokenIds] | None = None
    ) -> Generation:
        """See TokenSource.generate. A driver that answers fewer tokens is found by who counts them."""
        generation, _ = self._generated(prompt_ids, new_tokens, context)
        if len(generation.tokens) != len(prompt_ids):
            raise DriverError(
                f"{self._name}: its driver answered 'generate' with {len(generation.tokens)} sequences for "
                f"{len(prompt_ids)} prompts"
            )
        return generation

    def _generated(
        self, prompt_ids: Sequence[TokenIds], new_tokens: int, context: Sequence[TokenIds] | None
    ) -> tuple[Generation, dict[str, Any]]:
        """What the driver made, its times checked, and its whole answer."""
        answer = self._driver.ask(
            "generate",
            limit_s=self._limit_s,
            prompt_ids=[list(row) for row in prompt_ids],
            new_tokens=new_tokens,
            context=None if context is None else [list(row) for row in context],
        )
        try:
            times = [int(answer[key]) for key in ("start_ns", "first_ns", "last_ns", "end_ns")]
            tokens = tuple(tuple(int(token) for token in row) for row in answer["tokens"])
        except (KeyError, TypeError, ValueError) as error:
            raise DriverError(f"{self._name}: its driver answered 'generate' without tokens or times") from error
        if times != sorted(times) or times[0] == times[-1]:
            raise DriverError(f"{self._name}: its driver answered 'generate' with times that make no sense: {times}")
        return Generation(tokens, *times), answer

    def step_scores(self, ids: TokenIds, *, prompt_tokens: int = 1) -> Scores | None:
        """See TokenSource.score."""
        import numpy

        due = len(ids) - prompt_tokens + 1
        answer = self._driver.ask("score", limit_s=self._limit_s, ids=list(ids), prompt_tokens=prompt_tokens)
        rows = answer.get("log_probabilities")
        if rows is None:
            return None
        scores = numpy.asarray(rows, dtype=numpy.float32)
        if scores.ndim != 2 or len(scores) != due:
            raise DriverError(f"{self._name}: its driver scored {len(rows)} of {due} positions")
        return Scores(scores)

    def facts(self) -> EngineFacts:
        """See TokenSource.facts."""
        answer = self._facts()
        try:
            return EngineFacts(
                name=self._name,
                tokens_read=answer["tokens_read"],
                kv_cache=answer["kv_cache"],
                engine_version=answer.get("version"),
            )
        except (KeyError, ValidationError) as error:
            raise DriverError(
                f"{self._name}: its driver's facts lack tokens_read or kv_cache, or say them wrong"
            ) from error

    def peak_bytes(self) -> int | None:
        """See TokenSource.peak_bytes: the driver's own count, of what the model takes."""
        peak = self._facts().get("peak_bytes")
        return peak if isinstance(peak, int) and peak > 0 else None

    def _facts(self) -> dict[str, Any]:
        return self._driver.ask("facts", limit_s=self._limit_s)


class SubprocessEngine:
    """Base of engines with a driver. A subclass says its name, its command, and what it takes."""

    name: str
    summary: str
    options: type[Options] = Options
    limit_s = 600.0
    """Longest time for one request; opening a large model is one."""

    def command(self, form: Form) -> Sequence[str]:
        """Interpreter, driver program and arguments."""
        raise NotImplementedError

    def installed(self) -> str | None:
        """See Engine.installed."""
        raise NotImplementedError

    def splits(self, form: Form) -> str | None:  # noqa: ARG002
        """See Engine.splits."""
        return "it is given one GPU here; use --engine eager or vllm"

    def takes(self, form: Form, checkpoint: Checkpoint) -> str | None:
        """See Engine.takes."""
        raise NotImplementedError

    @contextmanager
    def open(
        self, checkpoint: Checkpoint, form: Form, device: Device, progress: Progress
    ) -> Iterator[SubprocessSource]:
        """See Engine.open."""
        progress.note(f"{self.name}: opening {checkpoint.model_id} in a process of its own")
        driver = Driver(self.name, self.command(form))
        try:
            driver.ask(
                "open",
                limit_s=self.limit_s,
                folder=str(Path(checkpoint.folder).resolve()),
                dtype=form.dtype,
                options=form.engine_options.model_dump(mode="json"),
                device=device.torch_name,
            )
            yield SubprocessSource(self.name, driver, limit_s=self.limit_s)
        finally:
            driver.close()


def _shown(text: bytes) -> str:
    """One line, not too long."""
    return " ".join(text.decode(errors="replace").split())[:300]
