"""Errors that a user can cause. Each prints one line with the problem, its file or option, and a remedy; exit code 2.

Every other exception is a fault of this program and keeps its traceback, so that it can be reported. This module
imports only the standard library, so that `benchmarker` can report that a package is missing.
"""

from __future__ import annotations

import difflib
import errno
import re
import shlex
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Literal, get_args

_Ended = Literal["oom_gpu", "oom_host", "timeout", "crash", "unsupported"]
_Refused = Literal["missing_library", "device", "model", "spec", "quality", "results"]
_Wrong = Literal["wrong_token_count", "wrong_result", "incomplete_graph"]
_Disturbed = Literal["throttled", "shared_device", "disturbed", "merged_tokens", "unwatched"]
ErrorKind = Literal[_Ended, _Refused, _Wrong, _Disturbed, "interrupted", "other"]
CellStatus = Literal["ok", "invalid", "oom_gpu", "oom_host", "timeout", "crash", "unsupported", "error"]


def status_of(kind: ErrorKind) -> CellStatus:
    match kind:
        case "oom_gpu" | "oom_host" | "timeout" | "crash" | "unsupported":
            return kind
        case "missing_library" | "device":
            return "unsupported"
    return "invalid" if kind in (*get_args(_Wrong), *get_args(_Disturbed)) else "error"


class BenchmarkerError(Exception):
    kind: ErrorKind = "other"


class SpecError(BenchmarkerError):
    kind = "spec"


class ModelError(BenchmarkerError):
    kind = "model"


class MissingLibraryError(BenchmarkerError):
    kind = "missing_library"


class DeviceError(BenchmarkerError):
    kind = "device"


class QualityError(BenchmarkerError):
    """Quality measurement that failed, for example because the model returns NaN or the disk is full."""

    kind = "quality"


class ChangedError(BenchmarkerError):
    """File, library or setting that changed after the job was written."""


class ResultsError(BenchmarkerError):
    kind = "results"


class MemoryNeededError(BenchmarkerError):
    """Too little free main memory for a measurement."""

    kind = "oom_host"


class ProcessError(BenchmarkerError):
    """Another process that does not start or answer, or that ended. A sweep retries a "crash" or "timeout" once."""

    def __init__(self, text: str, kind: ErrorKind = "other") -> None:
        super().__init__(text)
        self.kind = kind


class UnsupportedError(BenchmarkerError):
    kind = "unsupported"


class WrongResultError(BenchmarkerError):
    """Wrong output of a measured call, whose time is therefore not reported."""

    kind: ErrorKind = "wrong_result"


class WrongTokenCountError(WrongResultError):
    """Wrong number of tokens from an engine. The engine still runs, so the sweep measures its next cell."""

    kind = "wrong_token_count"


class FieldError(ValueError):
    def __init__(self, text: str, *, field: str = "") -> None:
        super().__init__(text)
        self.field = field


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def sentence_of(error: BaseException) -> str:
    if isinstance(error, BenchmarkerError) or not str(error).strip():
        return first_line(error)
    return f"{type(error).__name__}: {first_line(error)}"


def near_miss(word: str, names: Iterable[str], *, alike: float = 0.6) -> str | None:
    """Return the most similar name; None if no similarity (0 to 1) reaches `alike`."""
    return next(iter(difflib.get_close_matches(word, sorted(names), n=1, cutoff=alike)), None)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return the end of a sentence: `; did you mean 'int8'?` or `; there is bnb4, fp16, gptq, int8`."""
    choices = sorted(names)
    if near := near_miss(word, choices):
        return f"; did you mean '{near}'?"
    return f"; there is {', '.join(choices)}" if choices else "; none is accepted here"


def comma_hint(word: str) -> str:
    return "; numbers of one option have commas between them: 512,2048" if word.isdigit() else ""


_WRITE_PROBLEMS = {
    errno.ENOSPC: "the disk is full; make room or {remedy}",
    errno.EDQUOT: "the disk quota is used up; make room or {remedy}",
    errno.EFBIG: "the limit on file size (ulimit -f) is too low; raise it or {remedy}",
    errno.EACCES: "no permission to write there; {remedy}",
    errno.EROFS: "the file system is read-only; {remedy}",
    errno.EEXIST: "part of the path is a file, not a folder; {remedy}",
    errno.ENOTDIR: "part of the path is a file, not a folder; {remedy}",
}


def write_problem(error: OSError, *, remedy: str) -> str:
    """Return the end of a message on a file that was not written, such as `the disk is full; make room or REMEDY`."""
    problem = _WRITE_PROBLEMS.get(error.errno or 0)
    return problem.format(remedy=remedy) if problem else f"{error.strerror or error}; {remedy}"


def read_problem(path: Path | str, error: OSError) -> str:
    """Return `text.txt: cannot be read: Permission denied`. `path` may begin with an option: `--text text.txt`."""
    return f"{path}: cannot be read: {error.strerror or error}"


COMPUTING = (
    "torch",
    "transformers",
    "accelerate",
    "torchao",
    "bitsandbytes",
    "optimum",
    "gptqmodel",
    "triton",
    "pytorch-triton-rocm",
    "triton-rocm",
)
"""Packages whose code runs while a model is loaded or generates."""
OWN_NAME, DISTRIBUTION = "benchmarker", "llm-quant-benchmarker"
CHECKOUT = Path(__file__).parents[2]


def installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def install_hint(extra: str) -> str:
    """Return the command that installs an extra: in a checkout by its name, else by its requirements."""
    if CHECKOUT.joinpath("pyproject.toml").exists():
        return f"pip install -e '.[{extra}]' in benchmarker's folder"
    lines = metadata.requires(DISTRIBUTION) or []
    wanted = [line.partition(";")[0].strip() for line in lines if re.search(f"extra == ['\"]{extra}['\"]", line)]
    return f"pip install {shlex.join(wanted)}"


@contextmanager
def exit_if_libraries_are_missing() -> Iterator[None]:
    """Exit with one line instead of a traceback if a module of another package cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(OWN_NAME):
            raise
        sys.exit(
            f"error: {error.name} is not installed for {sys.executable}; activate the environment "
            "(. .venv/bin/activate), or set one up with bash script/environment.sh"
        )


@contextmanager
def report_library_conflicts() -> Iterator[None]:
    """Raise MissingLibraryError instead of an ImportError inside a library, such as one from a missing dependency."""
    try:
        yield
    except ImportError as error:
        conflict = _library_conflict(error)
        if conflict is None:
            raise
        raise MissingLibraryError(conflict) from error


def _library_conflict(error: ImportError) -> str | None:
    """Return a description of the conflict between two libraries; None if the faulty import is in this package."""
    while isinstance(error.__cause__, ImportError):
        # transformers raises an error of its own, whose cause is the first error.
        error = error.__cause__
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    # Frames of Python's import machinery lie between the importing and the imported library.
    names = [name.split(".")[0] for name in frames if not name.startswith("importlib")]
    importer, imported = names[-1] if names else OWN_NAME, (error.name or "").split(".")[0]
    if OWN_NAME in (importer, imported) or not imported:
        return None
    version, needing = installed_version(imported), f"{importer} {installed_version(importer) or ''}"
    if version is None:
        return f"{needing} needs {imported}, which is not installed; pip install {imported}"
    reason = error.msg.split(" (")[0]
    return (
        f"the installed libraries do not fit together: {needing} imports a name that {imported} {version} lacks "
        f"({reason}); upgrade {imported}, or install the versions of script/constraints.txt"
    )
