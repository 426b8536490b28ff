"""Options that several commands have, and the values that a shell completes: fixed names, and names in files.

An unreadable file gives no completions, because an error message would break the command line.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from benchmarker.core.errors import BenchmarkerError

Records = Annotated[list[Path], typer.Argument(help="Records, or folders of records.")]
Baseline = Annotated[
    str | None,
    typer.Option(help="Variant to compare with.  \\[default: the sweep's, or each engine's unquantized one]"),
]
Force = Annotated[bool, typer.Option("--force", help="Compare records that differ in device, model or versions.")]
DeviceName = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N (also on ROCm).")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the output of the libraries.")]
Revision = Annotated[str | None, typer.Option(help="Hub branch, tag or commit.")]
LoadFormat = Annotated[str, typer.Option(help="auto, or dummy for random weights.")]
KeyValues = Annotated[list[str] | None, typer.Option(help="Option of the quantization, as key=value; may be repeated.")]
EngineName = Annotated[str, typer.Argument(help="Name in 'benchmarker engine list'.")]


def quantizations() -> list[str]:
    from benchmarker.quantization.registry import LOADERS

    return list(LOADERS)


def engines() -> list[str]:
    from benchmarker.engines.registry import ENGINES

    return list(ENGINES)


def model_engines() -> list[str]:
    from benchmarker.engines.registry import MODEL_ENGINES

    return list(MODEL_ENGINES)


def variants(ctx: typer.Context) -> list[str]:
    from benchmarker.schema.config_io import parse_experiment, read_config_bytes

    config = ctx.params.get("config")
    if config is None:
        return []
    os.environ["HF_HUB_OFFLINE"] = "1"  # A variant may name a hub id, and a completion must not wait.
    try:
        experiment = parse_experiment(read_config_bytes(Path(config)), Path(config))
    except BenchmarkerError:
        return []
    return [variant.name for variant in experiment.variants]


def complete_columns(ctx: typer.Context, incomplete: str) -> list[str]:
    from benchmarker.comparison.ranking import ranking_of
    from benchmarker.report.columns import first_table
    from benchmarker.report.compare import column_choices, compare

    # The line is incomplete: its words are not assigned to the argument yet.
    paths = ctx.params.get("paths") or ctx.args
    if not paths:
        return []
    try:
        comparison = compare([Path(path) for path in paths], force=True)
        names = column_choices(comparison, first_table(ranking_of(comparison)))
    except BenchmarkerError:
        return []
    typed, comma, _ = incomplete.rpartition(",")
    return [f"{typed}{comma}{name}" for name in names]
