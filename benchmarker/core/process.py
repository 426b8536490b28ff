"""State of the current process: garbage collection, death with its parent, and the output of libraries.

Libraries print progress bars, banners and warnings, some of it past Python's sys.stdout, so descriptors 1 and 2 are
redirected to a file, and this program prints to copies of the original descriptors. An unexpected error is reported
with the last lines of the file.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from io import UnsupportedOperation
from typing import TextIO

from benchmarker.core.errors import BenchmarkerError

PARENT = "BENCHMARKER_PARENT"
FORKED = "BENCHMARKER_FORKED"
"""Environment variable that is set in children forked from the process that imported their libraries."""
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
}
"""Environment variables that turn NVLink multicast off; collectives that use it hang in many virtual machines."""
_SET_PARENT_DEATH_SIGNAL = 1


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection in the block: a timed region, or code that creates many lasting objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def end_with_parent() -> None:
    """Let Linux kill this process when its parent dies. An orphan would go on measuring and disturb the next sweep."""
    ctypes.CDLL(None, use_errno=True).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    # The parent may have died before the call above, so its process id is compared. An id of 1 proves no death: it is
    # the id of the process that adopts orphans, but in a container the sweep itself may have it.
    parent = os.environ.get(PARENT)
    if parent is not None and parent != str(os.getppid()):
        os.kill(os.getpid(), signal.SIGKILL)


def signal_group(leader: int, number: signal.Signals) -> None:
    """Send a signal to a process and its own children, whose session receives no signals of the terminal."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a sweep or a run as Ctrl-C does."""


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Raise Terminated in the main thread on SIGTERM. Only the main thread can enter the block."""

    def terminate(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Streams:
    out: TextIO
    error: TextIO
    log: int | None = None  # Descriptor of the file with the libraries' output.

    def tail(self, lines: int = 20) -> str:
        """Return the last lines that libraries printed; empty if their output is not redirected to a file."""
        # Imported here, because every rank and server imports this module, and few call `tail`.
        from benchmarker.core.tables import lines_of

        if self.log is None:
            return ""
        _flush()
        start = max(0, os.fstat(self.log).st_size - TAIL_BYTES)
        text = os.pread(self.log, TAIL_BYTES, start).decode(errors="replace")
        return "\n".join([line.rstrip() for line in lines_of(text) if line.strip()][-lines:])


@contextmanager
def quiet_libraries(*, verbose: bool) -> Iterator[Streams]:
    """Redirect all output to a file, except text written to the yielded streams; redirect nothing if `verbose`."""
    if verbose:
        yield Streams(sys.stdout, sys.stderr)
        return
    with ExitStack() as stack:
        # A file without a name: a killed process leaves nothing behind.
        handle = stack.enter_context(tempfile.TemporaryFile()).fileno()
        streams = Streams(stack.enter_context(_copy(sys.stdout, 1)), stack.enter_context(_copy(sys.stderr, 2)), handle)
        stack.enter_context(_crashes_reported_to(streams.error))
        stack.enter_context(_redirected(handle))
        try:
            yield streams
        except (BenchmarkerError, SystemExit):
            raise
        except Exception as error:
            if tail := streams.tail():
                error.add_note(f"The libraries' last output:\n{tail}")
            raise


@contextmanager
def _copy(stream: TextIO, descriptor: int) -> Iterator[TextIO]:
    if _descriptor(stream) != descriptor:
        yield stream
        return
    stream.flush()
    with os.fdopen(os.dup(descriptor), "w", encoding=stream.encoding, errors="replace", buffering=1) as copy:
        yield copy


@contextmanager
def _redirected(log: int) -> Iterator[None]:
    with ExitStack() as stack:
        text = stack.enter_context(os.fdopen(os.dup(log), "w", encoding="utf-8", errors="replace", buffering=1))
        # In a notebook or a test, sys.stdout and sys.stderr do not write to descriptors 1 and 2.
        if _descriptor(sys.stdout) != 1:
            stack.enter_context(redirect_stdout(text))
        if _descriptor(sys.stderr) != 2:
            stack.enter_context(redirect_stderr(text))
        _flush()
        for descriptor in (1, 2):
            saved = os.dup(descriptor)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, descriptor)
            os.dup2(log, descriptor)
        stack.callback(_flush)
        yield


@contextmanager
def _crashes_reported_to(stream: TextIO) -> Iterator[None]:
    if _descriptor(stream) is None:
        yield
        return
    before = faulthandler.is_enabled()
    faulthandler.enable(stream)
    try:
        yield
    finally:
        faulthandler.disable()
        if before and _descriptor(sys.stderr) is not None:
            faulthandler.enable(sys.stderr)


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (UnsupportedOperation, AttributeError):
        return None


def _flush() -> None:
    """Write out the output buffers of Python and C before descriptors 1 and 2 change."""
    sys.stdout.flush()
    sys.stderr.flush()
    # C buffers output that is not to a terminal, and would write it to the restored descriptors.
    ctypes.CDLL(None).fflush(None)
