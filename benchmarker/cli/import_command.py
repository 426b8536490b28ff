"""`benchmarker import`: an old log as records, to stand beside new ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarker.core.console import Terminal, one_line_errors
from benchmarker.core.formatting import slug


def import_logs(
    logs: Annotated[
        list[Path], typer.Argument(help="Logs in the reference format, or result files of other benchmarks.")
    ],
    model: Annotated[str | None, typer.Option(help="Hub id, where the log does not name the model.")] = None,
    device: Annotated[str | None, typer.Option(help="Name of the device; the reference format has none.")] = None,
    kind: Annotated[str | None, typer.Option(help="cuda, rocm or cpu, where the log does not tell.")] = None,
    quant: Annotated[
        str | None, typer.Option(help="The variant of each run, in the log's order, as fp16,int8; for one log.")
    ] = None,
    day: Annotated[str | None, typer.Option(help="When it was run, as 2025-10-14.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the records.  \\[default: results/imported/<log>]")
    ] = None,
) -> None:
    """Turn the runs of old logs into records, which compare then shows as imported.

    Result files of llama-bench, vllm bench, SGLang, GuideLLM, AIPerf and optimum-benchmark are shown as a table: they
    contain too little for a record.

    Example: benchmarker import old-run.log --device "AMD Radeon PRO W7900"
    """
    from benchmarker.core.errors import SpecError
    from benchmarker.logs.log_import import import_log, write_imports
    from benchmarker.logs.tool_results import read_tool_results, tool_table

    with one_line_errors():
        results = {log: rows for log in logs if (rows := read_tool_results(log)) is not None}
        if results:
            if len(results) < len(logs) or any((model, device, kind, quant, day, output)):
                raise SpecError("results of other benchmarks are shown by themselves: give no logs and no options")
            Terminal().table([tool_table([row for rows in results.values() for row in rows])])
            return
        if quant is not None and len(logs) > 1:
            raise SpecError("--quant names the runs of one log; import several one by one")
        quants = [word.strip() for word in quant.split(",")] if quant is not None else []
        terminal = Terminal()
        # All are read before anything is written: a mistake in the second log leaves nothing half-imported.
        imports = [
            (log, import_log(log, model=model, device=device, kind=kind, quants=quants, day=day)) for log in logs
        ]
        for log, records in imports:
            folder = output or Path("results", "imported", slug(log.stem))
            for record, path in zip(records, write_imports(records, folder), strict=True):
                evidence = record.imported.evidence if record.imported else ""
                terminal.line(f"{record.variant.name}: {evidence} -> {path}")
