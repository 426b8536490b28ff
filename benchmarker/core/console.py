"""Output for the user: one line per step, a bar for long ones, tables.

Lines, tables and pinned lines go to standard output, so that a log of a run is complete; bars go to standard error.
Pinned lines and bars are for terminals only. No text is interpreted as markup, and control characters are removed.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from benchmarker.core.errors import BenchmarkerError
from benchmarker.core.process import Streams, quiet_libraries
from benchmarker.core.tables import Block, clean, show_blocks, to_markdown

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Streams", "Terminal", "one_line_errors", "print_what_can_be_printed", "quiet_libraries"]

REDRAW_S = 0.1
FILE_WIDTH = 100
_UP_AND_CLEAR = Control((ControlType.CURSOR_UP, 1), ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))


class Terminal:
    """Output for people, and the Progress of loaders. Quiet prints tables only; verbose replaces bars by lines."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False, streams: Streams | None = None) -> None:
        destination = streams or Streams(sys.stdout, sys.stderr)
        self._out = _console(destination.out)
        self._error = _console(destination.error)
        self._quiet = quiet
        self._steps: Bar | Tenths = (
            Bar(self._error)
            if self._error.is_terminal and not self._error.is_dumb_terminal and not verbose
            else Tenths(self._out)
        )
        self._pinned = Pinned(self._out)
        self.can_pin = self._out.is_terminal and not self._out.is_dumb_terminal and not quiet and not verbose

    def line(self, text: str) -> None:
        if not self._quiet:
            self._print(text)

    note = line

    def step(self, what: str, finished: int, total: int) -> None:
        if not self._quiet:
            self._steps.step(clean(what), finished, total)

    def pin(self, text: str) -> None:
        """Keep these lines below all others, instead of the previous ones; an empty text removes them."""
        if self.can_pin:
            self._pinned.show(clean(text))

    def table(self, blocks: Sequence[Block], *, detail: bool = False) -> None:
        """Print blocks after an empty line; also when quiet, unless they are a detail."""
        if self._out.is_terminal and not self._quiet:
            self.show(blocks)
        elif not (self._quiet and detail):
            self._print(("" if self._quiet else "\n") + to_markdown(blocks).rstrip("\n"))

    def show(self, blocks: Sequence[Block]) -> None:
        """Print paragraphs and tables, not wider than the terminal (100 columns in a file); also when quiet."""
        width = self._out.width if self._out.is_terminal else FILE_WIDTH
        with self._beside_pins():
            if not self._quiet:
                self._out.print()
            show_blocks(self._out, blocks, width)

    def _print(self, text: str) -> None:
        with self._beside_pins():
            # A terminal wraps long lines by itself; rich would cut them, so that they could not be copied.
            self._out.print(Text(clean(text)), soft_wrap=True, highlight=False)

    @contextmanager
    def _beside_pins(self) -> Iterator[None]:
        self._steps.clear()
        self._pinned.clear()
        yield
        self._pinned.draw()
        self._out.file.flush()


class Pinned:
    """Lines at the bottom of a terminal, removed and redrawn around every other line."""

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
        """Draw the lines if they fit: a wrapped line, or one that scrolled away, could not be removed."""
        width, height = self._console.size
        if not self._lines or len(self._lines) >= height or max(map(cell_len, self._lines)) >= width:
            return
        for line in self._lines:
            self._console.print(Text(line), soft_wrap=True, highlight=False)
        self._console.file.flush()
        self._drawn = len(self._lines)


class Bar:
    """A bar that is redrawn in place, at reports only: no thread redraws it during a measurement."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task: TaskID
        self._what = ""
        self._drawn_at: float | None = None

    def step(self, what: str, completed: int, total: int) -> None:
        if self._progress is None or what != self._what:
            self._begin(what, total)
        assert self._progress is not None
        finished = completed >= total
        self._progress.update(self._task, completed=completed, total=max(total, 1), count=_count(completed, total)[2:])
        if finished:
            self._progress = None
            self.clear()
        elif self._drawn_at is None or time.monotonic() - self._drawn_at >= REDRAW_S:
            self._draw(self._progress)

    def clear(self) -> None:
        if self._drawn_at is not None:
            self._console.control(_UP_AND_CLEAR)
            self._drawn_at = None

    def _begin(self, what: str, total: int) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        self._what = what
        columns = (
            TextColumn(
                "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", max_width=40)
            ),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}", markup=False),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self._console, auto_refresh=False)
        self._task = self._progress.add_task(what, total=max(total, 1), count="")

    def _draw(self, progress: Progress) -> None:
        self.clear()
        self._console.print(progress.make_tasks_table(progress.tasks))
        self._drawn_at = time.monotonic()


class Tenths:
    """Lines for a file, a pipe or a simple terminal: at the start, and after every further tenth."""

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
            self._console.print(Text(f"  {what}{_count(finished, total)}"), soft_wrap=True, highlight=False)
            self._console.file.flush()

    def clear(self) -> None: ...


def _count(finished: int, total: int) -> str:
    """Return `: 3/36`; percent if bytes are counted, nothing without a total."""
    if total <= 0:
        return ""
    return f": {finished}/{total}" if total < 1_000_000 else f": {100 * finished / total:.0f} %"


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process with one line and exit code 2 after a user's error, with 130 after Ctrl-C."""
    try:
        yield
    except BenchmarkerError as error:
        _say(f"error: {' '.join(str(error).split())}")
        raise SystemExit(2) from error
    except KeyboardInterrupt:
        _say("interrupted")
        raise SystemExit(130) from None


def print_what_can_be_printed() -> None:
    """Replace letters outside the output's encoding by question marks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _say(text: str) -> None:
    console = _console(sys.stderr)
    console.print(Text(clean(text)), soft_wrap=True, highlight=False)


def _console(stream: TextIO) -> Console:
    # Only the stream decides whether it is a terminal: a variable that forces colours must not draw bars into a file.
    return Console(file=stream, force_terminal=stream.isatty(), markup=False, emoji=False, highlight=False)
