"""Values of options that a shell completes: names that are known without a record, and those that the named files hold.

A name that cannot be had here completes to nothing: an error in the middle of a line would tear the line apart.
"""

from __future__ import annotations

from pathlib import Path

import typer

from benchmarker.core.errors import BenchmarkerError


def quantizations() -> list[str]:
    """Names that `--quant` takes."""
    from benchmarker.quantization.registry import LOADERS

    return list(LOADERS)


def engines() -> list[str]:
    """Names that `--engine` takes."""
    from benchmarker.engines.registry import ENGINES

    return list(ENGINES)


def model_engines() -> list[str]:
    """Those of them that run a model in this process, as `benchmarker generate` does."""
    from benchmarker.engines.registry import MODEL_ENGINES

    return list(MODEL_ENGINES)


def variants(ctx: typer.Context) -> list[str]:
    """Names of the variants in the config that stands before on the line."""
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
    """Columns of the tables of the records that stand before on the line, each after those that are typed already."""
    from benchmarker.report.choice import column_names
    from benchmarker.report.compare import compare

    # Half a line is parsed: its words are not the argument yet.
    paths = ctx.params.get("paths") or ctx.args
    if not paths:
        return []
    try:
        names = column_names(compare([Path(path) for path in paths], force=True))
    except BenchmarkerError:
        return []
    typed, comma, _ = incomplete.rpartition(",")
    return [f"{typed}{comma}{name}" for name in names]
