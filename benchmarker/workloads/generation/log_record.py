"""Record of a run that was read from a log.

A log contains no time to first token, no versions and no prompt: these values are None. Every cell has the flag
`imported`, by which tables show the origin of its numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from benchmarker import __version__
from benchmarker.engines.registry import ENGINES
from benchmarker.measure.clock import GenerationSample
from benchmarker.schema.model import ModelFacts
from benchmarker.schema.record import DeviceFacts, Environment, Imported, Memory
from benchmarker.workloads.generation.record import GenerationCell, GenerationRecord, GenerationVariant

if TYPE_CHECKING:
    from benchmarker.logs.log_import import DeviceKind, Log
    from benchmarker.logs.log_runs import LoggedCell, LoggedRun

_UNNAMED: dict[DeviceKind | None, str] = {
    "rocm": "unnamed AMD GPU",
    "cuda": "unnamed NVIDIA GPU",
    "cpu": "unnamed CPU",
    None: "unnamed device",
}
_DAY = re.compile(r"(?<!\d)20\d\d-[01]\d-[0-3]\d(?!\d)")
_THREADS = re.compile(r"Set num_threads to (\d+)")


def to_record(run: LoggedRun, log: Log, *, last_line: int, earlier: int) -> GenerationRecord:
    """Return the record of one run.

    Args:
        run: Run with a known variant and model.
        last_line: Number of the last line before the next run. Tables up to this line belong to `run`.
        earlier: Number of earlier runs of the same variant in the log; it is used as the number of the round.
    """
    model = log.model or run.model
    assert run.evidence is not None
    assert run.name is not None
    assert model is not None
    status, reason = _outcome(run)
    above = log.lines[: run.line]
    # `eager` is the only engine of the reference script.
    engine = next((word for word in run.name.split() if word in ENGINES), "eager")
    return GenerationRecord(
        benchmarker=__version__,
        run_id=f"import-{log.sha256[:12]}-{run.line:05}",
        started_at=log.day or _last(_DAY, above) or "undated",
        status=status,
        error_kind="other" if reason else None,
        reason=reason,
        round=earlier,
        model=ModelFacts(id=model),
        variant=GenerationVariant(name=run.name, quant=run.evidence.quant, engine=engine),
        environment=_environment(log.device or run.device or _UNNAMED[log.kind], log.kind, above),
        procedure={"runs": max(cell.runs for cell in run.cells)} if run.cells else {},
        cells=tuple(_cell(cell, on_cpu=log.kind == "cpu") for cell in run.cells),
        imported=Imported(
            source=log.source,
            line=run.line,
            evidence=run.evidence.source,
            profiler_tables=tuple(table.text for table in log.tables if run.line < table.line <= last_line),
        ),
        reproduce=log.command,
    )


def _outcome(run: LoggedRun) -> tuple[Literal["complete", "interrupted", "failed"], str | None]:
    if not run.cells:
        return "failed", "the log has no measurement of it"
    short = next((cell for cell in run.cells if len(cell.samples) < cell.runs or not cell.samples), None)
    if short is None:
        return "complete", None
    cell = f"prompt {short.prompt_tokens}, {short.new_tokens} new tokens"
    return "interrupted", f"the log has {len(short.samples)} of {short.runs or 'the'} timed runs at {cell}"


def _cell(cell: LoggedCell, *, on_cpu: bool) -> GenerationCell:
    sizes = [sample.memory_bytes for sample in cell.samples if sample.memory_bytes is not None]
    peak = max(sizes, default=None)
    short = next((sample.tokens for sample in cell.samples if sample.tokens != cell.new_tokens * cell.batch_size), None)
    reason = "the log has no timed run of it" if not cell.samples else None
    if short is not None:
        reason = f"{short} tokens were generated; {cell.new_tokens * cell.batch_size} were requested"
    return GenerationCell(
        prompt_tokens=cell.prompt_tokens,
        new_tokens=cell.new_tokens,
        batch_size=cell.batch_size,
        distinct_prompts=cell.batch_size if cell.has_distinct_prompts else 1,
        status="ok" if reason is None else "error" if not cell.samples else "invalid",
        error_kind=None if reason is None else "other" if not cell.samples else "wrong_token_count",
        reason=reason,
        samples=tuple(
            GenerationSample(
                latency_s=sample.latency_s,
                new_tokens=sample.tokens // cell.batch_size,
                peak_allocated_bytes=None if on_cpu else sample.memory_bytes,
            )
            for sample in cell.samples
        ),
        memory=Memory(peak_resident_bytes=peak) if on_cpu else Memory(peak_allocated_bytes=peak),
        flags=("imported",),
    )


def _environment(device: str, kind: DeviceKind | None, above: Sequence[str]) -> Environment:
    threads = _last(_THREADS, above)
    return Environment(
        device=DeviceFacts(kind=kind, name=device),
        cpu=None,
        cores=None,
        threads=int(threads) if threads else None,
        memory_bytes=None,
        system=None,
        python=None,
        packages={},
        variables={},
    )


def _last(pattern: re.Pattern[str], lines: Sequence[str]) -> str | None:
    for line in reversed(lines):
        match = pattern.search(line)
        if match:
            return match[match.lastindex or 0]
    return None
