"""What a run does once everything is timed, on the largest cell that ran: count kernels, profile, count energy, check
the step.

Each returns the fields of the record that it changes. The cells are measured and saved by then: what cannot be had here
becomes a reason in the record and undoes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from benchmarker.core.console import Terminal
from benchmarker.core.errors import BenchmarkerError, first_line
from benchmarker.hardware.device import Device, kind_of
from benchmarker.hardware.find_gpu import find_gpu
from benchmarker.measure.energy import measure_energy
from benchmarker.measure.profile import count_kernels, profile_step
from benchmarker.profiling.profile_table import profile_table
from benchmarker.profiling.trace import Cut
from benchmarker.quality.step_check import step_divergence, texts_for
from benchmarker.schema.energy import Energy
from benchmarker.schema.quality import StepDivergence
from benchmarker.schema.quality_words import step_line, wrong_step_words
from benchmarker.schema.record import Missing
from benchmarker.workloads.generation.benchmark import GenerationStep, SourceBenchmarker
from benchmarker.workloads.generation.record import GenerationCell, GenerationProfile, GenerationRecord
from benchmarker.workloads.generation.spec import GenerationJob, Point
from benchmarker.workloads.generation.words import profiled_words

Found = TypeVar("Found")


def kernels_counted(
    job: GenerationJob, record: GenerationRecord, benchmarker: SourceBenchmarker, terminal: Terminal
) -> dict[str, Any]:
    """Kernels a token, at the last good cell. Not before all is timed: a tracer leaves its mark.

    A graph that holds fewer of them than the step runs by itself was fast for a reason that makes its cells invalid.
    """
    last = record.last_good
    if last is None or benchmarker.device.kind == "cpu":
        return {}
    counted = _tried(lambda: _counted(record, job.points()[last], benchmarker), benchmarker.device)
    if isinstance(counted, Missing):
        terminal.line(f"kernels not counted: {counted.reason}")
        return {"no_profile": counted}
    return counted


def _counted(record: GenerationRecord, point: Point, benchmarker: SourceBenchmarker) -> dict[str, Any]:
    if record.cells[-1].status != "ok":
        # Back from the shape that did not work to the one that did.
        benchmarker.step(point)()
    kernels = benchmarker.source.kernels_per_token(lambda work: count_kernels(work, benchmarker.device))
    facts = benchmarker.source.facts()
    counted = {"engine": facts.model_copy(update={"kernels_per_token": kernels})}
    in_graph = facts.graph_kernels
    if kernels is None or in_graph is None or in_graph >= kernels:
        return counted
    missing = f"the graph holds {in_graph:,} of the {kernels:,.0f} kernels of a step"
    return {**counted, "cells": tuple(_invalid(cell, missing) for cell in record.cells)}


def _invalid(cell: GenerationCell, reason: str) -> GenerationCell:
    if cell.status != "ok":
        return cell
    return cell.model_copy(update={"status": "invalid", "error_kind": "incomplete_graph", "reason": reason})


def profiled(
    job: GenerationJob, record: GenerationRecord, benchmarker: SourceBenchmarker, path: Path, terminal: Terminal
) -> dict[str, Any]:
    """One more generation under the profiler, cut to `profile_tokens`, with its trace beside the record at `path`."""
    last = record.last_good
    if last is None:
        return {}
    if benchmarker.source.is_elsewhere:
        reason = f"{job.variant.engine} runs in a process of its own, which torch.profiler here does not see"
        terminal.line(f"no profile: {reason}")
        return {"no_profile": Missing(error_kind="unsupported", reason=reason)}
    whole = job.points()[last]
    point = whole._replace(new_tokens=min(whole.new_tokens, job.procedure.profile_tokens))
    terminal.line(f"profiling one generation of {point.new_tokens} tokens")
    profile = _tried(lambda: _profile(point, benchmarker, path), benchmarker.device)
    if isinstance(profile, Missing):
        terminal.line(f"no profile: {profile.reason}")
        return {"no_profile": profile}
    if not job.part:
        terminal.table(profile_table(profile, what=profiled_words(profile)), detail=True)
    # Kernels that could not be counted are no reason why there is no profile.
    return {"profile": profile, "no_profile": None}


def _profile(point: Point, benchmarker: SourceBenchmarker, path: Path) -> GenerationProfile:
    step = benchmarker.step(point)
    step()  # warm at this length too: its cache shape may be new
    profile = profile_step(
        step, device=benchmarker.device, trace_path=path.with_suffix(".trace.json.gz"), cuts=lambda: _cuts(step)
    )
    return GenerationProfile(
        # The fields and not a dump of them: these are checked values already.
        **dict(profile),
        prompt_tokens=len(benchmarker.prompt(point).ids),
        new_tokens=point.new_tokens,
        batch_size=point.batch_size,
        depth=point.depth,
    )


def _cuts(step: GenerationStep) -> tuple[Cut, ...]:
    """Prefill ends and decoding begins with the first token."""
    first_ns = step.first_token_ns
    return () if first_ns is None else (Cut("prefill", None), Cut("decode", first_ns))


def with_energy(
    job: GenerationJob, record: GenerationRecord, benchmarker: SourceBenchmarker, terminal: Terminal
) -> dict[str, Any]:
    """The cells, the last good one with its energy."""
    last = record.last_good
    if last is None:
        return {}
    point = job.points()[last]
    terminal.line("counting the energy of the last cell")
    energy = _tried(lambda: _energy(point, benchmarker), benchmarker.device)
    if isinstance(energy, Missing):
        terminal.line(f"no energy: {energy.reason}")
        return {"no_energy": energy}
    cells = list(record.cells)
    cells[last] = cells[last].model_copy(update={"energy": energy})
    return {"cells": tuple(cells)}


def _energy(point: Point, benchmarker: SourceBenchmarker) -> Energy:
    return measure_energy(
        find_gpu(benchmarker.device),
        generation=benchmarker.step(point),
        prefill=benchmarker.step(point._replace(new_tokens=1)) if point.new_tokens > 1 else None,
    )


def step_checked(
    job: GenerationJob, record: GenerationRecord, benchmarker: SourceBenchmarker, terminal: Terminal
) -> dict[str, Any]:
    """The timed step held against the form's own forward, at the shape of the last good cell.

    Cells of a step that computes something else have no speed: they are invalid.
    """
    last = record.last_good
    if last is None:
        return {}
    checked = _tried(lambda: _step_divergence(job.points()[last], record.cells[last], benchmarker), benchmarker.device)
    if isinstance(checked, Missing):
        terminal.line(f"step not checked: {checked.reason}")
        return {"no_step_divergence": checked}
    if checked is None:
        return {}
    terminal.line(step_line(checked))
    cells = tuple(_with_verdict(cell, checked) for cell in record.cells)
    return {"step_divergence": checked, "cells": cells}


def _step_divergence(point: Point, cell: GenerationCell, benchmarker: SourceBenchmarker) -> StepDivergence | None:
    # Back to the shape that is to be checked: profile and energy may have left another.
    sample = benchmarker.step(point)()
    texts = texts_for(
        benchmarker.text,
        longest=cell.depth + cell.prompt_tokens + cell.new_tokens,
        step_s=sample.tpot_s or sample.latency_s,
    )
    return step_divergence(benchmarker.source, texts)


def _with_verdict(cell: GenerationCell, checked: StepDivergence) -> GenerationCell:
    if cell.status != "ok" or checked.verdict in ("equal", "cache"):
        return cell
    if checked.verdict == "differs":
        return cell.model_copy(update={"flags": (*cell.flags, "step_differs")})
    return cell.model_copy(
        update={"status": "invalid", "error_kind": "wrong_result", "reason": wrong_step_words(checked)}
    )


def _tried(work: Callable[[], Found], device: Device) -> Found | Missing:
    """What the work finds, or the reason why it cannot be done here, such as too little memory."""
    try:
        return work()
    except Exception as error:
        if not isinstance(error, BenchmarkerError) and not device.is_out_of_memory(error):
            raise
        missing = Missing(error_kind=kind_of(error, device), reason=first_line(error))
    # Outside the except block, whose traceback keeps the failed generation's tensors alive.
    device.release()
    return missing
