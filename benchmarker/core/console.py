"""Output for the user: one line per step, a progress bar for each long step, and tables.

Lines and tables go to standard output, so that a log of a run is complete; progress bars go to standard error. In a
terminal, lines can be pinned below all others. No text is interpreted as markup, and control characters are removed.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from textwrap import wrap
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from benchmarker.core.errors import BenchmarkerError, status_of
from benchmarker.core.process import PARENT, Streams, Terminated, quiet_libraries
from benchmarker.core.tables import COMMANDS_UNBROKEN, Block, broken, clean, show_blocks

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Streams", "Terminal", "one_line_errors", "print_what_can_be_printed", "quiet_libraries"]

FILE_WIDTH = 100
_UP_AND_CLEAR = Control((ControlType.CURSOR_UP, 1), ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))


class Terminal:
    """Printer of lines, progress and tables. `quiet` prints tables only; `verbose` prints lines instead of bars."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False, streams: Streams | None = None) -> None:
        destination = streams or Streams(sys.stdout, sys.stderr)
        self._out = _console(destination.out)
        error = _console(destination.error)
        self._quiet = quiet
        self._steps: Bar | Tenths = Bar(error) if _can_redraw(error) and not verbose else Tenths(self._out)
        self._pinned = Pinned(self._out)
        self.can_pin = _can_redraw(self._out) and not quiet and not verbose

    def line(self, text: str) -> None:
        if not self._quiet:
            with self._beside_pins():
                _print_line(self._out, clean(text))

    def note(self, text: str) -> None:
        """Print a line, wrapped between words. A child process does not wrap, because its parent wraps the line."""
        indent = " " * (len(text) - len(text.lstrip()) + 4)
        width = sys.maxsize if PARENT in os.environ else self.width
        lines = wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        self.line("\n".join(lines))

    @property
    def width(self) -> int:
        return self._out.width if self._out.is_terminal else FILE_WIDTH

    def step(self, what: str, finished: int, total: int) -> None:
        if not self._quiet:
            self._steps.step(clean(what), finished, total)

    def pin(self, text: str) -> None:
        """Keep the lines of `text` below all later output, replacing earlier pinned lines; "" removes them."""
        if self.can_pin:
            self._pinned.show(clean(text))

    def detail(self, blocks: Sequence[Block]) -> None:
        if not self._quiet:
            self.show(blocks)

    def show(self, blocks: Sequence[Block]) -> None:
        """Print paragraphs and tables, not wider than the terminal (100 columns in a file), even if quiet."""
        with self._beside_pins():
            if not self._quiet:
                self._out.print()
            show_blocks(self._out, blocks, self.width)

    @contextmanager
    def _beside_pins(self) -> Iterator[None]:
        self._steps.clear()
        self._pinned.clear()
        yield
        self._pinned.draw()
        self._out.file.flush()


class Pinned:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: list[str] = []
        self._drawn = 0

    def show(self, text: str) -> None:
        self.clear()
        self._lines = text.split("\n") if text else []
        self.draw()

    def clear(self) -> None:
        for _ in range(self._drawn):
            self._console.control(_UP_AND_CLEAR)
        self._drawn = 0

    def draw(self) -> None:
        """Draw the lines if they fit the terminal: lines that wrap or scroll away could not be removed later."""
        width, height = self._console.size
        if not self._lines or len(self._lines) >= height or max(map(cell_len, self._lines)) >= width:
            return
        for line in self._lines:
            _print_line(self._console, line)
        self._drawn = len(self._lines)


class Bar:
    """Progress bar that is redrawn by calls of `step` only: no thread redraws it during a measurement."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task: TaskID
        self._what = ""
        self._drawn_at: float | None = None

    def step(self, what: str, completed: int, total: int) -> None:
        if self._progress is None or what != self._what:
            self._what, self._progress = what, self._new_progress()
            self._task = self._progress.add_task(what, count="")
        progress = self._progress
        progress.update(self._task, completed=completed, total=max(total, 1), count=_count(completed, total)[2:])
        if completed >= total:
            self._progress = None
            self.clear()
        elif self._drawn_at is None or time.monotonic() - self._drawn_at >= 0.1:
            self.clear()
            self._console.print(progress.make_tasks_table(progress.tasks))
            self._drawn_at = time.monotonic()

    def clear(self) -> None:
        if self._drawn_at is not None:
            self._console.control(_UP_AND_CLEAR)
            self._drawn_at = None

    def _new_progress(self) -> Progress:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        column = Column(no_wrap=True, overflow="ellipsis", max_width=40)
        name = TextColumn("{task.description}", markup=False, table_column=column)
        bar, count = BarColumn(bar_width=24), TextColumn("{task.fields[count]}", markup=False)
        return Progress(name, bar, count, TimeRemainingColumn(), console=self._console, auto_refresh=False)


class Tenths:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._what = ""
        self._tenth = -1

    def step(self, what: str, finished: int, total: int) -> None:
        tenth = 10 * finished // max(total, 1)
        if what != self._what or tenth < self._tenth:
            self._what, self._tenth = what, -1
        if tenth > self._tenth:
            self._tenth = tenth
            _print_line(self._console, f"  {what}{_count(finished, total)}")

    def clear(self) -> None: ...


def _count(finished: int, total: int) -> str:
    """Return `: 3/36`; `: 8 %` for a total of a million or more, such as bytes; "" for a total of 0."""
    if total <= 0:
        return ""
    return f": {finished}/{total}" if total < 1_000_000 else f": {100 * finished / total:.0f} %"


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process with one line and an exit code if the block raises a BenchmarkerError or is interrupted.

    In a terminal the line is wrapped between words, but not inside a command.
    The code is 2 after a user's error, 1 if memory does not suffice, 130 after Ctrl-C, and 143 after SIGTERM.
    """
    try:
        yield
    except BenchmarkerError as error:
        console, line = _console(sys.stderr), Text(clean(f"error: {' '.join(str(error).split())}"))
        lines = broken(line, console.width, COMMANDS_UNBROKEN) if console.is_terminal else [line]
        _print_line(console, "\n".join(each.plain for each in lines))
        raise SystemExit(1 if status_of(error.kind) in ("oom_gpu", "oom_host") else 2) from error
    except KeyboardInterrupt as error:
        is_terminated = isinstance(error, Terminated)
        _print_line(_console(sys.stderr), "terminated" if is_terminated else "interrupted")
        raise SystemExit(143 if is_terminated else 130) from None


def print_what_can_be_printed() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _print_line(console: Console, text: str) -> None:
    # A terminal wraps long lines by itself; rich would cut them, so that they could not be copied.
    console.print(Text(text), soft_wrap=True, highlight=False)
    console.file.flush()


def _can_redraw(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal


def _console(stream: TextIO) -> Console:
    # rich also obeys FORCE_COLOR, which must not draw bars into a file.
    return Console(file=stream, force_terminal=stream.isatty(), markup=False, emoji=False, highlight=False)
