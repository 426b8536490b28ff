"""Commands on saved records: `report`, `history`, `verify` and `import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarker.core.console import Terminal, one_line_errors

RESULTS = Path("results")
PAGE_NAME = "report.html"


def report(
    paths: Annotated[list[Path], typer.Argument(help="Records, or folders of records.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Page to write.  \\[default: report.html in the given folder]"),
    ] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for the charts as PNG files.")] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Variant that speed-ups are relative to.  \\[default: the sweep's, or fp16]")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare records that differ in device, model or versions.")
    ] = False,
) -> None:
    """Write the tables and charts of a comparison as one HTML page that needs no network.

    Example: benchmarker report results/nvidia-h100-80gb-hbm3 -o report.html --plots plots
    """
    with one_line_errors():
        from benchmarker.comparison.ranking import ranking_of
        from benchmarker.core.formatting import plural
        from benchmarker.report.answer import answer
        from benchmarker.report.compare import compare
        from benchmarker.report.html.write import write_plots, write_report

        comparison = compare(paths, baseline=baseline, force=force)
        page = output or (paths[0] / PAGE_NAME if len(paths) == 1 and paths[0].is_dir() else Path(PAGE_NAME))
        write_report(comparison, page)
        terminal = Terminal()
        terminal.show(["\n".join(answer(comparison, ranking_of(comparison)))])
        terminal.line(f"report: {page}")
        if plots is not None:
            written = write_plots(comparison, plots)
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
    with one_line_errors():
        from benchmarker.report.history import history_sheets, variants_sheet
        from benchmarker.schema.record_io import collect

        collected = collect(paths or [RESULTS])
        Terminal().show([variants_sheet(collected)] if variant is None else history_sheets(collected, variant))


def verify(
    paths: Annotated[list[Path], typer.Argument(help="Records, or folders of records.")],
) -> None:
    """Recompute every number of the records and their tables from the raw samples, and print each difference.

    The exit code is 1 if a number differs.

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
        wrong = [
            f"{plural(len(verified.mismatches), 'does', 'do')} not follow from the samples" * bool(verified.mismatches),
            f"{plural(len(verified.problems), 'file', 'files')} could not be read" * bool(verified.problems),
        ]
        numbers = f"{verified.numbers} numbers of {plural(verified.records, 'record', 'records')}"
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
    from benchmarker.core.errors import SpecError
    from benchmarker.core.formatting import slug
    from benchmarker.core.tables import Sheet
    from benchmarker.logs.log_import import import_log, write_imports
    from benchmarker.logs.tool_results import COLUMNS, read_tool_results

    with one_line_errors():
        results = {log: rows for log in logs if (rows := read_tool_results(log)) is not None}
        if results:
            if len(results) < len(logs) or any((model, device, kind, quant, day, output)):
                raise SpecError("results of other benchmarks have a table of their own: give no logs and no options")
            Terminal().table([Sheet("", COLUMNS, [row for rows in results.values() for row in rows])])
            return
        if quant is not None and len(logs) > 1:
            raise SpecError("--quant names the runs of one log; import several logs one by one")
        quants = [name.strip() for name in quant.split(",")] if quant is not None else []
        terminal = Terminal()
        # All logs are read before anything is written, so that an error in the second leaves no partial import.
        imports = [
            (log, import_log(log, model=model, device=device, kind=kind, quants=quants, day=day)) for log in logs
        ]
        for log, records in imports:
            folder = output or Path("results", "imported", slug(log.stem))
            for record, path in zip(records, write_imports(records, folder), strict=True):
                evidence = record.imported.evidence if record.imported else ""
                terminal.line(f"{record.variant.name}: {evidence} -> {path}")
