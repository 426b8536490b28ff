"""`benchmarker history`: one variant's rate over the runs that were saved on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarker.core.console import Terminal, one_line_errors

RESULTS = Path("results")


def history(
    variant: Annotated[str, typer.Argument(help="Name of the variant, as the tables show it.")],
    paths: Annotated[list[Path] | None, typer.Argument(help="Folders of records.  \\[default: results]")] = None,
) -> None:
    """Show how fast a variant was in every sweep and single run that is saved, the oldest first.

    Example: benchmarker history fp16-compile results/reference
    """
    with one_line_errors():
        from benchmarker.report.history import history_sheets
        from benchmarker.schema.collect import collect

        Terminal().show(history_sheets(collect(paths or [RESULTS]), variant))
