"""What the user sees: one line a step, a bar on long ones, tables.

Lines and tables go to standard output, so that a log of a run is whole, and so does what is pinned below them; bars go
to standard error. Pins and bars are for terminals only. Text is printed as it is: nothing in a model's name is markup,
and no control character gets through.
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
from benchmarker.core.sheet_terminal import show_blocks
from benchmarker.core.silence import Streams, quiet_libraries
from benchmarker.core.tables import Block, to_markdown
from benchmarker.core.terminal_text import clean

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Streams", "Terminal", "one_line_errors", "print_what_can_be_printed", "quiet_libraries"]

REDRAW_S = 0.1
FILE_WIDTH = 100
"""Columns of a table where no terminal says how wide it is."""
_UP_AND_CLEAR = Control((ControlType.CURSOR_UP, 1), ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))


class Terminal:
    """Prints for people. Also the Progress that loaders report to."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False, streams: Streams | None = None) -> None:
        """Print to the given streams, or to the process's own.

        Args:
            quiet: Print tables alone.
            verbose: The libraries are talking too, so a bar would be torn apart: print lines instead.
        """
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
        """Whether `pin` shows anything."""

    def line(self, text: str) -> None:
        """Say one thing, unless quiet."""
        if not self._quiet:
            self._print(text)

    def note(self, text: str) -> None:
        """Say something from inside a long step, unless quiet."""
        self.line(text)

    def step(self, what: str, finished: int, total: int) -> None:
        """Show how far a long step is, unless quiet: `step("quantizing layers", 3, 36)`."""
        if not self._quiet:
            self._steps.step(clean(what), finished, total)

    def pin(self, text: str) -> None:
        """Keep these lines below all others, in place of the last ones; an empty text takes them off."""
        if self.can_pin:
            self._pinned.show(clean(text))

    def table(self, blocks: Sequence[Block], *, detail: bool = False) -> None:
        """Print blocks with an empty line before them; also when quiet, unless they are only a detail.

        A terminal gets text that fits; a file or pipe gets markdown, and so does a quiet terminal.
        """
        if self._out.is_terminal and not self._quiet:
            self.show(blocks)
        elif not (self._quiet and detail):
            self._print(("" if self._quiet else "\n") + to_markdown(blocks).rstrip("\n"))

    def show(self, blocks: Sequence[Block]) -> None:
        """Print paragraphs and tables, with an empty line before them; also when quiet.

        No line is wider than the terminal; to a file, than 100 columns. A terminal has bold headings.
        """
        width = self._out.width if self._out.is_terminal else FILE_WIDTH
        with self._beside_pins():
            if not self._quiet:
                self._out.print()
            show_blocks(self._out, blocks, width)

    def _print(self, text: str) -> None:
        with self._beside_pins():
            # A terminal wraps a long line by itself; rich would cut it into lines that nobody can copy.
            self._out.print(Text(clean(text)), soft_wrap=True, highlight=False)

    @contextmanager
    def _beside_pins(self) -> Iterator[None]:
        self._steps.clear()
        self._pinned.clear()
        yield
        self._pinned.draw()
        self._out.file.flush()


class Pinned:
    """Lines that stay at the bottom of a terminal: taken off before another line is printed, and put back after it."""

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
        """Nothing where it would not fit: a line that wraps, or one that scrolled away, could not be taken off."""
        width, height = self._console.size
        if not self._lines or len(self._lines) >= height or max(map(cell_len, self._lines)) >= width:
            return
        for line in self._lines:
            self._console.print(Text(line), soft_wrap=True, highlight=False)
        self._console.file.flush()
        self._drawn = len(self._lines)


class Bar:
    """A bar that is redrawn in place.

    It is drawn only when there is news: no thread redraws it while something is measured, and nothing has to be put
    back in order after Ctrl-C.
    """

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
        """Take the bar off the screen; the next step draws it again."""
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
    """Plain lines for a file, a pipe or a simple terminal: at the start, and after every further tenth."""

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
    """`: 3/36`; in percent where it is bytes that are counted, and nothing where there is no end to count to."""
    if total <= 0:
        return ""
    return f": {finished}/{total}" if total < 1_000_000 else f": {100 * finished / total:.0f} %"


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process as a user expects: their mistake in one line with exit code 2, Ctrl-C with 130.

    Anything else is ours and keeps its traceback.
    """
    try:
        yield
    except BenchmarkerError as error:
        _say(f"error: {' '.join(str(error).split())}")
        raise SystemExit(2) from error
    except KeyboardInterrupt:
        _say("interrupted")
        raise SystemExit(130) from None


def print_what_can_be_printed() -> None:
    """A terminal of few letters shows a question mark for the others, where Python would stop."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _say(text: str) -> None:
    console = _console(sys.stderr)
    console.print(Text(clean(text)), soft_wrap=True, highlight=False)


def _console(stream: TextIO) -> Console:
    # What is a terminal is asked of the stream alone: a variable that forces colours must not draw bars into a file.
    return Console(file=stream, force_terminal=stream.isatty(), markup=False, emoji=False, highlight=False)
