"""What a user can cause: each error is one line that says what was wrong, where, and what to do; exit code 2.

Anything else that goes wrong is ours: it keeps its traceback, so that it can be reported.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Literal

ErrorKind = Literal[
    "oom_gpu",
    "oom_host",
    "timeout",
    "crash",
    "unsupported",
    "missing_library",
    "device",
    "model",
    "spec",
    "quality",
    "results",
    "wrong_token_count",
    "wrong_result",
    "incomplete_graph",
    "throttled",
    "shared_device",
    "disturbed",
    "unwatched",
    "interrupted",
    "other",
]
"""What a program branches on, where a reader has the sentence."""


class BenchmarkerError(Exception):
    """Base of everything that prints as one line instead of a traceback."""

    kind: ErrorKind = "other"
    """What a record calls it."""


class SpecError(BenchmarkerError):
    """A config file, an option or an argument asks for something that does not exist or makes no sense."""

    kind = "spec"


class ModelError(BenchmarkerError):
    """The model cannot be found, reached, read or used for what was asked."""

    kind = "model"


class MissingLibraryError(BenchmarkerError):
    """A variant needs a library that is not installed."""

    kind = "missing_library"


class DeviceError(BenchmarkerError):
    """The device asked for is not there, or cannot do what was asked."""

    kind = "device"


class QualityError(BenchmarkerError):
    """Quality cannot be measured: no room for the distributions, or a model that gives no numbers."""

    kind = "quality"


class ChangedError(BenchmarkerError):
    """A file, a library or a setting is not what it was when the job was written."""


class ResultsError(BenchmarkerError):
    """Records cannot be read, written or compared."""

    kind = "results"


class UnsupportedError(BenchmarkerError):
    """This variant cannot do this here; the message says which operation and why."""

    kind = "unsupported"


class WrongResultError(BenchmarkerError):
    """What came out is not what was asked for: its time means nothing."""

    kind: ErrorKind = "wrong_result"


class WrongTokenCountError(WrongResultError):
    """An engine answered other than the tokens that were asked for. It still runs: the next cell is measured."""

    kind = "wrong_token_count"


class FieldError(ValueError):
    """Something in a variant that only a registry can tell is wrong."""

    def __init__(self, text: str, *, field: str = "") -> None:
        super().__init__(text)
        self.field = field
        """Name of the key, where the sentence is about one."""


def first_line(error: BaseException) -> str:
    """The first line of what it says; its name where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def sentence_of(error: BaseException) -> str:
    """What a record says of an error: our own are sentences; of another the class tells most, so it stands before."""
    if isinstance(error, BenchmarkerError) or not str(error).strip():
        return first_line(error)
    return f"{type(error).__name__}: {first_line(error)}"


def near_miss(word: str, names: Iterable[str], *, alike: float = 0.5) -> str | None:
    """The name that is most like a word; None where none is as much alike, from 0 to 1."""
    return next(iter(difflib.get_close_matches(word, sorted(names), n=1, cutoff=alike)), None)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """End of a sentence that offers the near miss, or else what there is.

    Returns:
        `; did you mean 'int8'?` or `; there is bnb4, fp16, gptq, int8`.
    """
    choices = sorted(names)
    if near := near_miss(word, choices):
        return f"; did you mean '{near}'?"
    return f"; there is {', '.join(choices)}" if choices else "; none is accepted here"


def commas_if_number(word: str) -> str:
    """What to add where a word belongs to nothing: a number may be the second one of an option."""
    return "; numbers of one option have commas between them: 512,2048" if word.isdigit() else ""
