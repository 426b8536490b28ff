"""`benchmarker verify`: does every number follow from the raw samples?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarker.core.console import Terminal, one_line_errors


def verify(
    paths: Annotated[list[Path], typer.Argument(help="Records, or folders of records.")],
) -> None:
    """Compute every number of the records and their tables again from the raw samples, and say what does not match.

    Exits with 1 where something does not.

    Example: benchmarker verify results/reference/h100
    """
    from benchmarker.core.formatting import plural
    from benchmarker.report.verify import verify as verify_records

    with one_line_errors():
        verified = verify_records(paths)
        terminal = Terminal()
        for problem in verified.problems:
            terminal.line(f"cannot be read: {problem}")
        for mismatch in verified.mismatches:
            terminal.line(str(mismatch))
        what = f"{verified.numbers} numbers of {plural(verified.records, 'record', 'records')}"
        wrong = [
            f"{plural(len(verified.mismatches), 'does', 'do')} not follow from the samples" * bool(verified.mismatches),
            f"{plural(len(verified.problems), 'file', 'files')} could not be read" * bool(verified.problems),
        ]
        terminal.line(f"{what} checked: " + (", ".join(filter(None, wrong)) or "all follow from the raw samples"))
    if not verified.is_right:
        raise typer.Exit(1)
