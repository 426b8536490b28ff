"""Bench of text generation: one model in one quantization, opened by an engine and measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarker.checkpoints.base import Checkpoint
from benchmarker.checkpoints.read_model import found_model, load_tokenizer
from benchmarker.core.console import Terminal
from benchmarker.core.errors import UnsupportedError, WrongResultError
from benchmarker.core.formatting import gib, plural, seconds
from benchmarker.engines.base import Form, TokenSource, refuse_device
from benchmarker.engines.registry import ENGINES, MODEL_ENGINES
from benchmarker.hardware.device import Device
from benchmarker.hardware.gpu import find_gpu
from benchmarker.measure.energy import measure_energy
from benchmarker.measure.profile_repeat import count_kernels, profile_step
from benchmarker.profiling.chrome_trace import Cut
from benchmarker.profiling.profile_table import profile_table
from benchmarker.quality.judge import Subject
from benchmarker.quality.step_check import step_divergence, texts_for
from benchmarker.quantization.coverage import refusal
from benchmarker.quantization.load import find_checkpoint, options_of
from benchmarker.quantization.registry import LOADERS, loader_options
from benchmarker.quantization.stored_formats import unpacked_words
from benchmarker.schema.model import LoadFacts
from benchmarker.schema.quality import StepDivergence, step_line, wrong_step_words
from benchmarker.schema.record import Missing
from benchmarker.workloads.generation.generation_job import lacking, refuse_too_large
from benchmarker.workloads.generation.generation_quality import measure_quality, measure_tasks, plan_quality
from benchmarker.workloads.generation.prompts import check_fits, distinct_count, make_prompts
from benchmarker.workloads.generation.read_architecture import on_meta
from benchmarker.workloads.generation.record import GenerationCell, GenerationProfile, GenerationRecord
from benchmarker.workloads.generation.source_benchmarker import SourceBenchmarker
from benchmarker.workloads.generation.spec import GenerationJob, Point
from benchmarker.workloads.session import Session, refuse_other_commit, tried

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from benchmarker.quality.judge import Plan


class Found(NamedTuple):
    checkpoint: Checkpoint
    tokenizer: Any | None
    plan: Plan | None  # Plan of the quality measurement.


def find_inputs(job: GenerationJob, form: Form, device: Device, session: Session) -> Found:
    """Find the checkpoint, check form and prompts, and plan the measurement of quality. Raises BenchmarkerError."""
    engine = ENGINES[job.variant.engine]
    refuse_device(engine.name, device)
    checkpoint = found_checkpoint(job, device, session.terminal)
    on_device = job.model_copy(update={"device": device.kind})
    if reason := lacking(on_device) or engine.why_not_taken(form, checkpoint):
        raise UnsupportedError(f"{engine.name}: {reason}")
    refuse_other_commit(job, job.model.id, checkpoint.revision)
    tokenizer = load_tokenizer(checkpoint)
    if texts := _text_lengths(job, checkpoint.config, tokenizer):
        # A sweep needs the lengths of text prompts for the row of a cell that fails.
        session.keep(text_tokens=texts)
    plan = plan_quality(job, checkpoint, tokenizer, session.terminal)
    session.ready()
    return Found(checkpoint, tokenizer, plan)


def found_checkpoint(job: GenerationJob, device: Device, terminal: Terminal) -> Checkpoint:
    """Find the checkpoint; check lengths and memory before weights are downloaded or made."""
    return find_checkpoint(
        job.model,
        job.variant,
        progress=terminal,
        device=device.torch_name,
        check_config=partial(_check_config, job, device),
        is_external=job.variant.engine not in MODEL_ENGINES,
    )


class GenerationBench(SourceBenchmarker):
    """Bench that also profiles the model and measures its quality after timing."""

    def __init__(
        self, job: GenerationJob, source: TokenSource, inputs: Found, device: Device, session: Session, stack: ExitStack
    ) -> None:
        """Wrap an open engine; `stack` closes it."""
        _keep_loaded(job, source.loaded, inputs.checkpoint, session)
        config, template = inputs.checkpoint.config, job.model.chat_template
        outline = outline_of(job, inputs.checkpoint)
        super().__init__(source, config, device, tokenizer=inputs.tokenizer, chat_template=template, outline=outline)
        self._job = job
        self._session = session
        self._plan = inputs.plan
        self._stack = stack
        if self.no_demand:
            session.terminal.line(f"no floor and no memory-bandwidth utilization: {self.no_demand.reason}")

    def cell(self, point: Point) -> GenerationCell:
        return super().cell(point).model_copy(update={"text": self._job.grid.text_of(point)})

    def correct(self, point: Point) -> dict[str, Any]:
        """Raise WrongResultError if most of the model is not in the variant's quantization."""
        loader, loaded = LOADERS[self._job.variant.quant], self.source.loaded
        coverage = loaded.coverage if loaded else None
        if reason := refusal(loader, coverage):
            raise WrongResultError(unpacked_words(loader, coverage) if coverage and loader.unpacked_unless else reason)
        return super().correct(point)

    def afterwards(self, record: Any, path: Path) -> dict[str, Any]:  # noqa: ARG002
        """Count kernels, profile, measure energy, check the step and measure quality; save each result at once."""
        job, session = self._job, self._session
        works = [count_kernels_per_token, profile_generation] if job.procedure.profile else []
        works += [count_energy] if job.procedure.energy else []
        works += [check_step] if job.part is None or job.part.profile else []
        for work in works:
            session.keep(**after_timing(work, LastCell(job, session.record, self, path, session.terminal)))
        if not job.is_judged:
            return {}
        fields: dict[str, Any] = {}
        if job.quality.tasks:
            fields |= measure_tasks(job, self.source.model, self._tokenizer, session.terminal)
        if self._plan:
            subject = Subject(self.source, self._stack.close)
            del self.source
            fields |= measure_quality(self._plan, subject, self.device, session.terminal)
        return fields


def outline_of(job: GenerationJob, checkpoint: Checkpoint) -> PreTrainedModel | None:
    """Return the model without weights if an engine in another process runs it unquantized on one GPU; else None."""
    variant, options = job.variant, job.variant.engine_options
    is_quantized = variant.quant != "fp16" or checkpoint.quantization or options.get("quantization")
    is_unknown = options.keys() & {"speculative", "gpu_layers"} or options.get("gguf", "F16") != "F16"
    if variant.engine in MODEL_ENGINES or is_quantized or is_unknown or variant.gpus > 1:
        return None
    return on_meta(checkpoint.config, "float16" if variant.engine == "llama-cpp" else job.model.dtype)


def _check_config(job: GenerationJob, device: Device, config: dict[str, Any]) -> None:
    for point in job.grid.points():
        if point.prompt_tokens is not None:
            check_fits(point, point.prompt_tokens, config, model=job.model.id)
    refuse_too_large(job, device, config)


def _text_lengths(job: GenerationJob, config: dict[str, Any], tokenizer: Any | None) -> tuple[int, ...]:
    """Return the lengths in tokens of the text prompts, after checking that they fit the model."""
    lengths: dict[str, int] = {}
    for point in job.grid.points():
        if point.prompt is not None:
            prompt, *_ = make_prompts(
                point, tokenizer=tokenizer, vocabulary=config["vocab_size"], chat_template=job.model.chat_template
            )
            check_fits(point, len(prompt.ids), config, model=job.model.id)
            lengths[point.prompt] = len(prompt.ids)
    return tuple(lengths[text] for text in job.grid.prompts)


def _keep_loaded(job: GenerationJob, facts: LoadFacts | None, checkpoint: Checkpoint, session: Session) -> None:
    model = found_model(session.record.model, checkpoint)
    model = model.model_copy(update={"parameters": facts.parameters if facts else None})
    variant = session.record.variant
    options = options_of(job.variant.quant, loader_options(job.variant), checkpoint).model_dump()
    session.keep(model=model, load=facts, variant=variant.model_copy(update={"options": options}))
    if facts:
        session.terminal.line(
            f"loaded in {seconds(facts.load_s)}: weights {gib(facts.weight_bytes)}, "
            f"{facts.bits_per_weight:.2f} bits a weight, peak {gib(facts.peak_bytes)}"
        )


class LastCell(NamedTuple):
    """Last good cell of a record, whose shape is used for measurements after timing."""

    job: GenerationJob
    record: GenerationRecord
    benchmarker: SourceBenchmarker
    path: Path  # Path of the record.
    terminal: Terminal

    @property
    def number(self) -> int:
        return self.record.last_good or 0

    @property
    def point(self) -> Point:
        point: Point = self.job.points()[self.number]
        return point


def after_timing(work: Callable[[LastCell], dict[str, Any]], last: LastCell) -> dict[str, Any]:
    """Return the fields of the record that `work` changes, or a reason if `work` fails; {} without a good cell."""
    if last.record.last_good is None:
        return {}
    changed = tried(lambda: work(last), last.benchmarker.device)
    if isinstance(changed, Missing):
        title, field = REASONS[work]
        last.terminal.line(f"{title}: {changed.reason}")
        return {field: changed}
    return changed


def count_kernels_per_token(last: LastCell) -> dict[str, Any]:
    """Count the kernels of a step without its graph. A graph with fewer kernels is incomplete and voids all cells."""
    record, benchmarker = last.record, last.benchmarker
    if benchmarker.device.kind == "cpu":
        return {}
    if record.cells[-1].status != "ok":
        # Return to the shape of the last good cell; the last cell failed.
        benchmarker.step(last.point)()
    kernels = benchmarker.source.kernels_per_token(lambda work: count_kernels(work, benchmarker.device))
    facts = benchmarker.source.facts()
    counted = {"engine": facts.model_copy(update={"kernels_per_token": kernels})}
    in_graph = facts.graph_kernels
    if kernels is None or in_graph is None or in_graph >= kernels:
        return counted
    missing = f"the graph holds {in_graph:,} of the {kernels:,.0f} kernels of a step"
    invalid = {"status": "invalid", "error_kind": "incomplete_graph", "reason": missing}
    cells = tuple(cell.model_copy(update=invalid) if cell.status == "ok" else cell for cell in record.cells)
    return {**counted, "cells": cells}


def profile_generation(last: LastCell) -> dict[str, Any]:
    """Profile one more generation of at most `profile_tokens`, and write its trace next to the record."""
    job, benchmarker, source = last.job, last.benchmarker, last.benchmarker.source
    if source.is_elsewhere and not ENGINES[job.variant.engine].has_trace:
        engine = job.variant.engine
        raise UnsupportedError(f"{engine} runs in a process of its own, which torch.profiler here does not see")
    point = last.point._replace(new_tokens=min(last.point.new_tokens, job.procedure.profile_tokens))
    last.terminal.line(f"profiling one generation of {plural(point.new_tokens, 'token', 'tokens')}")
    step, prompts = benchmarker.step(point), benchmarker.prompts(point)
    step()  # warm-up: the cache shape of this length may be new
    trace_path = last.path.with_suffix(".trace.json.gz")
    trace, cuts = source.trace if source.is_elsewhere else None, partial(_cuts, benchmarker)
    profile = profile_step(step, device=benchmarker.device, trace_path=trace_path, cuts=cuts, trace=trace)
    profile = GenerationProfile(
        # The fields, not `model_dump()`: they are validated values already.
        **dict(profile),
        prompt_tokens=len(prompts[0].ids),
        new_tokens=point.new_tokens,
        batch_size=point.batch_size,
        depth=point.depth,
        distinct_prompts=distinct_count(prompts),
    )
    if not job.part:
        last.terminal.detail(profile_table(profile, what=profile.subject))
    # `no_profile` may contain the reason why kernels were not counted; the profile exists, so it is cleared.
    return {"profile": profile, "no_profile": None}


def _cuts(benchmarker: SourceBenchmarker) -> tuple[Cut, ...]:
    first_ns = benchmarker.repeats.first_token_ns
    return () if first_ns is None else (Cut("prefill", None), Cut("decode", first_ns))


def count_energy(last: LastCell) -> dict[str, Any]:
    last.terminal.line("counting the energy of the last cell")
    point, benchmarker, cells = last.point, last.benchmarker, list(last.record.cells)
    energy = measure_energy(
        find_gpu(benchmarker.device),
        generation=benchmarker.step(point),
        prefill=benchmarker.step(point._replace(new_tokens=1)) if point.new_tokens > 1 else None,
    )
    cells[last.number] = cells[last.number].model_copy(update={"energy": energy})
    return {"cells": tuple(cells)}


def check_step(last: LastCell) -> dict[str, Any]:
    """Compare predictions of the timed step with the variant's own forward pass. A wrong step voids all cells."""
    cell = last.record.cells[last.number]
    # Return to the shape of the cell: profile and energy may have set up another shape.
    sample = last.benchmarker.step(last.point)()
    longest, step_s = cell.depth + cell.prompt_tokens + cell.new_tokens, sample.tpot_s or sample.latency_s
    texts = texts_for(last.benchmarker.text, longest=longest, step_s=step_s)
    checked = step_divergence(last.benchmarker.source, texts)
    if checked is None:
        return {}
    last.terminal.line(step_line(checked))
    cells = tuple(_with_verdict(cell, checked) for cell in last.record.cells)
    return {"step_divergence": checked, "cells": cells}


REASONS: dict[Callable[[LastCell], dict[str, Any]], tuple[str, str]] = {
    count_kernels_per_token: ("kernels not counted", "no_profile"),
    profile_generation: ("no profile", "no_profile"),
    count_energy: ("no energy", "no_energy"),
    check_step: ("step not checked", "no_step_divergence"),
}
"""(beginning of the printed line, field of the record) for the reason why a measurement was not possible."""


def _with_verdict(cell: GenerationCell, checked: StepDivergence) -> GenerationCell:
    if cell.status != "ok" or checked.verdict in ("equal", "cache"):
        return cell
    if checked.verdict == "differs":
        return cell.model_copy(update={"flags": (*cell.flags, "step_differs")})
    return cell.model_copy(
        update={"status": "invalid", "error_kind": "wrong_result", "reason": wrong_step_words(checked)}
    )
