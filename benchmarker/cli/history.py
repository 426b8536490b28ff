"""`benchmarker history`: one variant's rate over the runs that were saved on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarker.core.console import Terminal, one_line_errors

RESULTS = Path("results")


def history(
    variant: Annotated[
        str | None, typer.Argument(help="Name of the variant, as the tables show it.  \\[default: list them]")
    ] = None,
    paths: Annotated[list[Path] | None, typer.Argument(help="Folders of records.  \\[default: results]")] = None,
) -> None:
    """Show how fast a variant was in every sweep and single run that is saved, the oldest first.

    Example: benchmarker history fp16-compile results/reference
    """
    with one_line_errors():
        from benchmarker.report.history import history_sheets, variants_sheet
        from benchmarker.schema.collect import collect

        collected = collect(paths or [RESULTS])
        Terminal().show([variants_sheet(collected)] if variant is None else history_sheets(collected, variant))
