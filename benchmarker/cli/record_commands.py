"""Commands on saved records: `compare`, `explain`, `report`, `history`, `verify` and `import`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarker.cli.common_options import Baseline, Force, Records, complete_columns
from benchmarker.core.console import Terminal
from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.core.formatting import plural, slug
from benchmarker.core.tables import Block, Sheet, to_markdown

FORMATS = ("text", "markdown", "csv", "json")


def compare(
    paths: Records,
    baseline: Baseline = None,
    whole: Annotated[bool, typer.Option("--all", help="Print every table, cell, caption and caveat.")] = False,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Columns of the table, separated by commas, as 'TTFT,load'.", autocompletion=complete_columns
        ),
    ] = None,
    sort: Annotated[
        str | None, typer.Option(help="Column to sort by, best row first.", autocompletion=complete_columns)
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="text, markdown (to paste), csv or json (one line or object per row, in base units).",
            autocompletion=lambda: list(FORMATS),
        ),
    ] = "text",
    force: Force = False,
    pool: Annotated[bool, typer.Option("--pool", help="Take the records of several folders as one sweep.")] = False,
    budget: Annotated[
        str | None, typer.Option(help="Recommend one variant within these limits, as 'memory<6GiB, kld<0.05'.")
    ] = None,
    fail_if: Annotated[
        str | None,
        typer.Option(
            help="Compare two sweeps, before and after; exit 1 if a cell is significantly slower, as slower:5%."
        ),
    ] = None,
) -> None:
    """Compare saved records: print the best variant and one table.

    Example: benchmarker compare results/nvidia-h100-80gb-hbm3

    Example: benchmarker compare results/nvidia-h100-80gb-hbm3 --budget "memory<6GiB, kld<0.05"

    Example: benchmarker compare results/nvidia-h100-80gb-hbm3 --all --format markdown

    Example: benchmarker compare results/before results/after

    Example: benchmarker compare results/before results/after --fail-if slower:5%
    """
    if form not in FORMATS:
        raise SpecError(f"--format {form}: no such format{did_you_mean(form, FORMATS)}")
    if budget is not None and fail_if is not None:
        raise SpecError("--budget and --fail-if are two different comparisons; give one of them")
    if fail_if is not None:
        if whole or columns or sort or pool or form == "csv":
            raise SpecError("--fail-if prints its own table; leave out --all, --columns, --sort, --pool, --format csv")
        _gate(paths, fail_if, form, baseline=baseline, force=force)
        return
    if (columns or sort) and (whole or form == "json"):
        raise SpecError("--columns and --sort apply to one table; leave out --all and --format json")
    from benchmarker.comparison.recommend import recommend
    from benchmarker.comparison.results import to_rows
    from benchmarker.report import compare as report
    from benchmarker.report.answer import recommendation_blocks, recommendation_to_dict

    comparison = report.compare(paths, baseline=baseline, force=force, pool=pool)
    recommendation = recommend(comparison, budget) if budget is not None else None
    sheet = report.chosen_sheet(comparison, columns, sort) if columns or sort else None
    if form == "json":
        answer = recommendation_to_dict(recommendation) if recommendation else to_rows(comparison)
        typer.echo(json.dumps(answer, indent=1, allow_nan=False))
    elif form == "csv":
        typer.echo(report.to_csv(comparison, sheet), nl=False)
    else:
        blocks = report.brief(comparison, recommendation, sheet=sheet) if not whole else report.whole(comparison)
        if whole and recommendation:
            blocks = [*blocks, *recommendation_blocks(recommendation)]
        _print(blocks, form)


def _print(blocks: Sequence[Block], form: str) -> None:
    if form == "markdown":
        typer.echo(to_markdown(blocks), nl=False)
    else:
        Terminal().show(blocks)


def _gate(paths: Sequence[Path], limit: str, form: str, *, baseline: str | None, force: bool) -> None:
    from benchmarker.comparison.gate import check, gate_blocks, gate_to_rows
    from benchmarker.report.compare import compare as compare_records

    if len(paths) != 2:
        raise SpecError(f"--fail-if compares two sweeps, before and after; {len(paths)} given")
    before, after = (compare_records([path], baseline=baseline, force=force) for path in paths)
    gate = check(before, after, limit=limit, force=force)
    if form == "json":
        typer.echo(json.dumps(gate_to_rows(gate), indent=1, allow_nan=False))
    else:
        _print(gate_blocks(gate), form)
    if gate.is_failed:
        raise typer.Exit(1)


def explain(
    paths: Annotated[
        list[Path], typer.Argument(help="Records, folders of records, logs with profiler tables, or Chrome traces.")
    ],
    baseline: Baseline = None,
    compare_tables: Annotated[
        bool, typer.Option("--compare", help="Show the profiler tables of a log side by side.")
    ] = False,
    form: Annotated[
        str, typer.Option("--format", help="text, markdown, or json with one object per table and variant.")
    ] = "text",
    force: Force = False,
) -> None:
    """Explain the speed of each variant: where the time of a token goes, and how to reduce it.

    Example: benchmarker explain results/nvidia-h100-80gb-hbm3

    Example: benchmarker explain old-run.log --compare

    Example: benchmarker explain trace.json.gz
    """
    if form not in (formats := ("text", "markdown", "json")):
        raise SpecError(f"--format {form}: no such format{did_you_mean(form, formats)}")
    from benchmarker.comparison.results import results_of_records
    from benchmarker.explain.explain import explanations_to_rows
    from benchmarker.logs.explain_log import is_log_or_trace, read_log_or_trace
    from benchmarker.logs.table_report import table_to_blocks, table_to_row, tables_contrasted, tables_side_by_side
    from benchmarker.report.compare import compare, explain_results

    files = [path for path in paths if is_log_or_trace(path)]
    if compare_tables and not files:
        raise SpecError("--compare shows the tables of a log side by side, and no log is given; records need no option")
    readings = [read_log_or_trace(path) for path in files]
    explained = [
        explain_results(results_of_records(reading.records, baseline=baseline, force=force))
        for reading in readings
        if reading.records
    ]
    if records := [path for path in paths if path not in files]:
        explained.append(compare(records, baseline=baseline, force=force))
    if form == "json":
        rows = [table_to_row(report) for reading in readings for report in reading.reports]
        rows += [row for log in explained for row in explanations_to_rows(log.explained, log.contrasts)]
        typer.echo(json.dumps(rows, indent=1, allow_nan=False))
        return
    from benchmarker.report.explanations import explained_blocks

    blocks: list[Block] = []
    for reading in readings:
        blocks += [block for report in reading.reports for block in table_to_blocks(report)]
        if len(reading.reports) > 1:
            blocks += tables_side_by_side(reading.reports) if compare_tables else []
            blocks += tables_contrasted(reading.reports)
        if reading.why_no_records:
            blocks.append(f"Its latencies are not used: {reading.why_no_records}.")
    _print([*blocks, *(block for comparison in explained for block in explained_blocks(comparison))], form)


def report(
    paths: Records,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Page to write.  \\[default: report.html in the given folder]")
    ] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for the charts as PNG files.")] = None,
    baseline: Baseline = None,
    force: Force = False,
) -> None:
    """Write the tables and charts of a comparison as one HTML page that needs no network.

    Example: benchmarker report results/nvidia-h100-80gb-hbm3 -o report.html --plots plots
    """
    from benchmarker.comparison.ranking import ranking_of
    from benchmarker.report.answer import answer
    from benchmarker.report.compare import compare
    from benchmarker.report.html.page import write_plots, write_report

    comparison = compare(paths, baseline=baseline, force=force)
    page = output or (paths[0] if len(paths) == 1 and paths[0].is_dir() else Path()) / "report.html"
    charts = write_report(comparison, page)
    terminal = Terminal()
    terminal.show(["\n".join(answer(comparison, ranking_of(comparison)))])
    terminal.line(f"report: {page}")
    if plots is not None:
        written = write_plots(comparison, charts, plots)
        terminal.line(f"plots: {plural(len(written), 'file', 'files')} in {plots}")


def history(
    variant: Annotated[
        str | None, typer.Argument(help="Name of the variant in the tables.  \\[default: list the variants]")
    ] = None,
    paths: Annotated[list[Path] | None, typer.Argument(help="Folders of records.  \\[default: results]")] = None,
) -> None:
    """Show the rate of a variant in every saved sweep and run, the oldest first.

    Example: benchmarker history fp16-compile results/reference
    """
    from benchmarker.report.history import history_sheets, variants_sheet
    from benchmarker.schema.record_io import collect

    collected = collect(paths or [Path("results")])
    Terminal().show([variants_sheet(collected)] if variant is None else history_sheets(collected, variant))


def comply(
    path: Annotated[Path, typer.Argument(metavar="FOLDER|CONFIG", help="Folder of a sweep, or a config to measure.")],
    variant: Annotated[list[str] | None, typer.Option(help="Variant whose model is checked; all by default.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for comply.json.  \\[default: that of a sweep on this machine]"),
    ] = None,
) -> None:
    """Check the measurements of a sweep on this machine, and write comply.json beside its records.

    A planted delay and simulated sweeps check clock and statistics; each variant's model is loaded again to check its
    tokens, prompts and times. `compare` then prints the result. The exit code is 1 if a check failed. A config is
    measured first, in a single round as by `sweep --quick`.

    Example: benchmarker comply results/nvidia-h100-80gb-hbm3/qwen3-4b
    """
    from benchmarker.comply.comply import comply as check_folder
    from benchmarker.comply.comply import comply_blocks

    terminal = Terminal()
    folder = path
    if path.suffix == ".json":
        raise SpecError(f"{path}: a file of a sweep; give its folder, {path.parent}")
    if path.is_file():
        from benchmarker.cli.sweep_command import sweep_config
        from benchmarker.sweep.request import RESULTS, Settings
        from benchmarker.sweep.resume import latest_sweep

        sweep_config(path, variant or [], terminal, Settings(rounds=1))
        folder = latest_sweep(RESULTS, path) or path
    file = check_folder(folder, variant or [], terminal.line, output=output)
    terminal.show(comply_blocks(file))
    if file.of("failed"):
        raise typer.Exit(1)


def verify(paths: Records) -> None:
    """Recompute every number of the records and their tables from the raw samples, and print each difference.

    The exit code is 1 if a number differs.

    Example: benchmarker verify results/reference/h100
    """
    from benchmarker.report.verify import verify as verify_records

    verified, terminal = verify_records(paths), Terminal()
    for line in (*(f"cannot be read: {problem}" for problem in verified.problems), *map(str, verified.mismatches)):
        terminal.line(line)
    wrong = [
        f"{plural(len(verified.mismatches), 'does', 'do')} not follow from the samples" * bool(verified.mismatches),
        f"{plural(len(verified.problems), 'file', 'files')} could not be read" * bool(verified.problems),
    ]
    numbers = f"{verified.numbers} numbers of {plural(verified.records, 'record', 'records')}"
    if verified.discarded:
        numbers += f" and {plural(verified.discarded, 'discarded try', 'discarded tries')}"
    terminal.line(f"{numbers} checked: " + (", ".join(filter(None, wrong)) or "all follow from the raw samples"))
    if not verified.is_right:
        raise typer.Exit(1)


def import_logs(
    logs: Annotated[
        list[Path], typer.Argument(help="Logs in the reference format, or result files of other benchmarks.")
    ],
    model: Annotated[str | None, typer.Option(help="Hub id, if the log does not name the model.")] = None,
    device: Annotated[
        str | None, typer.Option(help="Name of the device, which the reference format does not contain.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="cuda, rocm or cpu, if the log does not show it.")] = None,
    quant: Annotated[
        str | None, typer.Option(help="Variants of the runs in the log's order, as fp16,int8; for one log.")
    ] = None,
    day: Annotated[str | None, typer.Option(help="Date of the runs, as 2025-10-14.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the records.  \\[default: results/imported/<log>]")
    ] = None,
) -> None:
    """Convert the runs of old logs into records, which `compare` marks as imported.

    Result files of llama-bench, vllm bench, SGLang, GuideLLM, AIPerf and optimum-benchmark are shown as a table: they
    contain too little for a record.

    Example: benchmarker import old-run.log --device "AMD Radeon PRO W7900"
    """
    from benchmarker.logs.log_import import import_log, write_imports
    from benchmarker.logs.tool_results import COLUMNS, read_tool_results

    if results := [rows for log in logs if (rows := read_tool_results(log)) is not None]:
        if len(results) < len(logs) or any((model, device, kind, quant, day, output)):
            raise SpecError("results of other benchmarks have a table of their own: give no logs and no options")
        Terminal().show([Sheet("", COLUMNS, [row for rows in results for row in rows])])
        return
    if quant is not None and len(logs) > 1:
        raise SpecError("--quant names the runs of one log; import several logs one by one")
    quants = [name.strip() for name in quant.split(",")] if quant is not None else []
    terminal = Terminal()
    # All logs are read before anything is written, so that an error in the second leaves no partial import.
    imports = [(log, import_log(log, model=model, device=device, kind=kind, quants=quants, day=day)) for log in logs]
    for log, records in imports:
        folder = output or Path("results", "imported", slug(log.stem))
        for record, path in zip(records, write_imports(records, folder), strict=True):
            evidence = record.imported.evidence if record.imported else ""
            terminal.line(f"{record.variant.name}: {evidence} -> {path}")
