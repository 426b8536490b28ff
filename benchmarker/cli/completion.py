"""Values of options for a shell's completion: fixed names, and names in the files on the command line.

An unreadable file completes to nothing, because an error message would break the command line.
"""

from __future__ import annotations

from pathlib import Path

import typer

from benchmarker.core.errors import BenchmarkerError


def quantizations() -> list[str]:
    """Return the values of `--quant`."""
    from benchmarker.quantization.registry import LOADERS

    return list(LOADERS)


def engines() -> list[str]:
    """Return the values of `--engine`."""
    from benchmarker.engines.registry import ENGINES

    return list(ENGINES)


def model_engines() -> list[str]:
    """Return the engines that run a model in this process, as `benchmarker generate` does."""
    from benchmarker.engines.registry import MODEL_ENGINES

    return list(MODEL_ENGINES)


def variants(ctx: typer.Context) -> list[str]:
    """Return the names of the variants in the config on the command line."""
    from benchmarker.schema.config_io import parse_experiment, read_config_bytes

    config = ctx.params.get("config")
    if config is None:
        return []
    try:
        experiment = parse_experiment(read_config_bytes(Path(config)), Path(config))
    except BenchmarkerError:
        return []
    return [variant.name for variant in experiment.variants]


def columns(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the columns of the records on the command line, each after the columns that are typed already."""
    from benchmarker.report.compare import column_choices, compare

    # The line is incomplete: its words are not assigned to the argument yet.
    paths = ctx.params.get("paths") or ctx.args
    if not paths:
        return []
    try:
        names = column_choices(compare([Path(path) for path in paths], force=True))
    except BenchmarkerError:
        return []
    typed, comma, _ = incomplete.rpartition(",")
    return [f"{typed}{comma}{name}" for name in names]
