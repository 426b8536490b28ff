"""The life of one run: find, load, warm up, measure, profile. The record on disk grows with every finished cell."""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.base import Checkpoint
from benchmarker.checkpoints.find import shapes_sha256
from benchmarker.checkpoints.read_model import load_tokenizer
from benchmarker.core.console import Terminal
from benchmarker.core.errors import ResultsError, first_line
from benchmarker.core.names import slug
from benchmarker.core.units import gib, seconds
from benchmarker.engines.base import TokenSource, UnsupportedError
from benchmarker.engines.registry import ENGINES
from benchmarker.execution.after_timing import kernels_counted, profiled, with_energy
from benchmarker.execution.job import Job, blank_record
from benchmarker.execution.job_file import changed_files, check_commit, check_unchanged
from benchmarker.execution.keys import result_key
from benchmarker.execution.quality_step import judged, plan_quality
from benchmarker.explain.explain import explain
from benchmarker.explain.values import bounds_of
from benchmarker.hardware.device import find_device
from benchmarker.hardware.environment import environment
from benchmarker.measure.memory import DeviceMemory
from benchmarker.measure.peaks import measure_limits
from benchmarker.quantization.prepare import find_checkpoint
from benchmarker.report.explanations import reasons
from benchmarker.report.markdown import summary
from benchmarker.schema.experiment import Point
from benchmarker.schema.record import Cell, LoadFacts, RunRecord, Sample
from benchmarker.schema.record_io import write_record
from benchmarker.workloads.generation.benchmark import SourceBenchmarker
from benchmarker.workloads.generation.prompts import check_fits, make_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from benchmarker.quality.plan import Plan


class Run:
    """One job, its record so far, and where that is kept."""

    def __init__(self, job: Job, terminal: Terminal) -> None:
        self.job = job
        self.terminal = terminal
        self.device = find_device(job.device)
        # Before anything touches the device: what it holds now is not ours.
        self._device_memory = DeviceMemory(self.device)
        started = datetime.now(UTC)
        surroundings = environment(self.device)
        run_id = f"{started:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        folder = job.output or Path("results") / slug(surroundings.device.name.lower()) / slug(job.model.id.lower())
        self.path = job.part.record if job.part else folder / f"{slug(job.variant.name)}-{run_id}.json"
        self.record = blank_record(job, surroundings, run_id=run_id, started=started)

    def execute(self) -> RunRecord:
        """Do all of it.

        Raises:
            BenchmarkerError: The job cannot be done; nothing is written unless a cell was finished.
            KeyboardInterrupt: Ctrl-C; the finished cells are in the record, marked interrupted.
        """
        _check_writable(self.path.parent)
        self.terminal.line(f"{self.job.variant.name}: {self.job.model.id} on {self.record.environment.device.name}")
        if self.job.part:
            # From here on the sweep sees how far this process is, and what it was if it dies.
            self._keep()
        try:
            self._measure()
        except BaseException as error:
            # In a sweep, a variant that could not even load still gets its row.
            if self.record.cells or self.job.part:
                interrupted = isinstance(error, KeyboardInterrupt)
                self._keep(status="interrupted" if interrupted else "failed", reason=_one_line(error))
            if self.record.cells:
                done = f"{len(self.record.cells)} of {len(self.job.points())} cells"
                self.terminal.line(f"{done} are in the record: {self.path}")
            raise
        self._keep(status="complete")
        if not self.job.part:
            found = explain(self.record.variant.name, [self.record])
            self.terminal.table(summary(self.record, bounds=bounds_of([found])))
            for reason in reasons([found]):
                self.terminal.table(f"{reason}\n", detail=True)
            self.terminal.line(f"record: {self.path}")
        return self.record

    def _measure(self) -> None:
        check_unchanged(self.job, self.record.environment)
        if self.job.part is None:
            for name in changed_files(self.job):
                self.terminal.line(f"note: {name} is not what it was when the job was saved")
        checkpoint = find_checkpoint(
            self.job.model,
            self.job.variant,
            progress=self.terminal,
            device=self.device.torch_name,
            check_config=self._check_lengths,
        )
        check_commit(self.job, checkpoint.revision)
        tokenizer = load_tokenizer(checkpoint)
        self._check_prompts(checkpoint, tokenizer)
        plan = plan_quality(self.job, checkpoint, tokenizer, self.terminal)
        if self.job.procedure.limits and self.job.is_timed:
            self._measure_limits()
        with ExitStack() as stack:
            benchmarker = self._open(stack, checkpoint, tokenizer)
            # Files may change while they are read, which takes minutes for a large model.
            check_unchanged(self.job, self.record.environment)
            self._measure_cells(benchmarker)
            models = [benchmarker.source.model] if self.job.is_judged else []
            # The model is handed over whole, so that it can make room for the baseline.
            del benchmarker
        if self.job.is_judged:
            self._keep(**self._judge(plan, models, tokenizer))

    def _judge(self, plan: Plan | None, models: list[PreTrainedModel | None], tokenizer: Any | None) -> dict[str, Any]:
        """Fields of the record on quality.

        Args:
            models: The variant alone; it is taken out.
        """
        model = models.pop()
        if model is not None:
            taken = [model]
            del model
            return judged(self.job, plan, taken, tokenizer, self.device, self.terminal)
        reason = f"{self.job.variant.engine} has no model in this process that could be judged"
        self.terminal.line(f"no quality: {reason}")
        return {"no_quality": reason}

    def _measure_cells(self, benchmarker: SourceBenchmarker) -> None:
        """Every cell of the job, and what is measured once after them."""
        for point in self.job.points():
            prompt_tokens = len(benchmarker.prompt(point).ids)
            batch = f", batch of {point.batch_size}" if point.batch_size > 1 else ""
            depth = f", after {point.depth} in the cache" if point.depth else ""
            self.terminal.line(f"prompt of {prompt_tokens}, {point.new_tokens} new tokens{batch}{depth}")
            cell = benchmarker.measure(point, self.job.procedure, after_each=self._run_line(point.batch_size))
            cell = self._with_origin(cell, point)
            if cell.status != "ok":
                self.terminal.line(f"  {cell.status}: {cell.reason}")
            self._keep(cells=(*self.record.cells, cell), runtime=benchmarker.source.facts())
            if self.job.part and cell.status in ("oom_gpu", "oom_host"):
                # An allocator that ran dry is no place to measure the next cell: the sweep starts a fresh process.
                break
        if self.job.procedure.profile:
            self._keep(**kernels_counted(self.job, self.record, benchmarker, self.terminal))
            self._keep(**profiled(self.job, self.record, benchmarker, self.path, self.terminal))
        if self.job.procedure.energy:
            self._keep(**with_energy(self.job, self.record, benchmarker, self.terminal))

    def _with_origin(self, cell: Cell, point: Point) -> Cell:
        """The cell with its key, and which of the texts that were asked for it has."""
        job = self.job
        key = result_key(job.model, job.variant, point, job.procedure, self.record.environment)
        return cell.model_copy(update={"text": job.grid.text_of(point), "key": key})

    def _check_prompts(self, checkpoint: Checkpoint, tokenizer: Any | None) -> None:
        """Refuse prompts that cannot be made, or that do not fit, before any weight is read."""
        config = checkpoint.config
        lengths: dict[str | None, int] = {}
        for point in self.job.grid.points():
            prompt = make_prompt(
                point,
                tokenizer=tokenizer,
                vocabulary=config["vocab_size"],
                chat_template=self.job.model.chat_template,
            )
            self._check_length(point, len(prompt.ids), config)
            lengths[point.prompt] = len(prompt.ids)
        texts = tuple(lengths[text] for text in self.job.grid.prompts)
        self.record = self.record.model_copy(update={"text_tokens": texts})
        if self.job.part and texts:
            # A sweep needs them for the row of a cell that fails.
            self._keep()

    def _check_lengths(self, config: dict[str, Any]) -> None:
        """Refuse what does not fit before any weight is downloaded or made."""
        for point in self.job.grid.points():
            if point.prompt_tokens is not None:
                self._check_length(point, point.prompt_tokens, config)

    def _check_length(self, point: Point, prompt_tokens: int, config: dict[str, Any]) -> None:
        check_fits(point, prompt_tokens, positions=config.get("max_position_embeddings"), model=self.job.model.id)

    def _measure_limits(self) -> None:
        try:
            limits = measure_limits(self.device, self.job.model.dtype)
        except Exception as error:
            if not self.device.is_out_of_memory(error):
                raise
            self.terminal.line("limits: not measured, there is no room for the arrays")
            return
        self.record = self.record.model_copy(update={"limits": limits})
        self.terminal.line(
            f"limits: {limits.bytes_per_s / 1e9:.4g} GB/s from memory, "
            f"{limits.matmul_flops_per_s / 1e12:.3g} TFLOP/s in {limits.matmul_dtype}"
        )

    def _open(self, stack: ExitStack, checkpoint: Checkpoint, tokenizer: Any | None) -> SourceBenchmarker:
        """The engine, with the checkpoint open until the stack is closed.

        Raises:
            UnsupportedError: The engine is not installed, or does not take this form.
        """
        job, device = self.job, self.device
        engine, form = ENGINES[job.variant.engine], job.variant.form(job.model.dtype)
        reason = engine.installed() or engine.takes(form, checkpoint)
        if reason:
            raise UnsupportedError(f"{engine.name}: {reason}")
        source: TokenSource = stack.enter_context(engine.open(checkpoint, form, device, self.terminal))
        self._loaded(source.loaded, checkpoint)
        return SourceBenchmarker(
            source,
            checkpoint.config,
            device,
            tokenizer=tokenizer,
            chat_template=job.model.chat_template,
            device_memory=self._device_memory,
        )

    def _loaded(self, facts: LoadFacts | None, checkpoint: Checkpoint) -> None:
        model = self.record.model.model_copy(
            update={
                "revision": checkpoint.revision,
                "config_sha256": shapes_sha256(checkpoint.config),
                "parameters": facts.parameters if facts else None,
            }
        )
        self.record = self.record.model_copy(update={"model": model, "load": facts})
        if self.job.part:
            self._keep()
        if facts is None:
            return
        self.terminal.line(
            f"loaded in {seconds(facts.load_s)}: weights {gib(facts.weight_bytes)}, "
            f"{facts.bits_per_weight:.2f} bits a weight, peak {gib(facts.peak_bytes)}"
        )

    def _run_line(self, batch_size: int) -> Any:
        runs = self.job.procedure.runs

        def line(number: int, sample: Sample) -> None:
            rate = batch_size * sample.new_tokens / sample.latency_s
            memory = f", memory {gib(sample.peak_allocated_bytes)}" if sample.peak_allocated_bytes else ""
            self.terminal.line(
                f"  run {number}/{runs}: latency {sample.latency_s:.4f} s, "
                f"{batch_size * sample.new_tokens} tokens, {rate:.2f} tok/s{memory}"
            )

        return line

    def _keep(self, **changes: Any) -> None:
        """Update the record, and replace the one on disk."""
        self.record = self.record.model_copy(update=changes)
        write_record(self.record, self.path)


def _check_writable(folder: Path) -> None:
    """Find out before the measuring, not after, that the record cannot be saved.

    Raises:
        ResultsError: The folder cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ResultsError(
            f"{folder}: results cannot be written there ({os.strerror(error.errno or 0)}); "
            "choose another folder with --output"
        ) from error


def _one_line(error: BaseException) -> str:
    name = type(error).__name__
    return f"{name}: {first_line(error)}" if str(error).strip() else name
