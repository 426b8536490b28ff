"""One model in one form, opened by an engine and measured: the Bench of text generation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.base import Checkpoint
from benchmarker.checkpoints.model_config import shapes_sha256
from benchmarker.checkpoints.read_model import load_tokenizer
from benchmarker.core.errors import UnsupportedError
from benchmarker.core.formatting import gib, seconds
from benchmarker.engines.base import NEEDS_GPU, TokenSource
from benchmarker.engines.registry import ENGINES
from benchmarker.hardware.device import Device, one_of_several
from benchmarker.quality.judge import Subject
from benchmarker.quantization.prepare import find_checkpoint
from benchmarker.schema.model_facts import LoadFacts
from benchmarker.workloads.generation.after_timing import kernels_counted, profiled, step_checked, with_energy
from benchmarker.workloads.generation.benchmark import SourceBenchmarker
from benchmarker.workloads.generation.forms import form_of
from benchmarker.workloads.generation.job_facts import model_fingerprint
from benchmarker.workloads.generation.prompts import check_fits, make_prompt
from benchmarker.workloads.generation.quality_step import judged, plan_quality
from benchmarker.workloads.generation.record import GenerationCell
from benchmarker.workloads.generation.spec import GenerationJob, Point
from benchmarker.workloads.session import Session, refuse_other_commit

if TYPE_CHECKING:
    from benchmarker.quality.judging_plan import Plan


@contextmanager
def open_bench(job: GenerationJob, device: Device, session: Session) -> Iterator[GenerationBench]:
    """Find the checkpoint, check the prompts, plan the quality, and open the checkpoint in the form that is asked for.

    Raises:
        BenchmarkerError: The model cannot be had or used for this.
    """
    if device.kind == "cpu" and job.variant.engine in NEEDS_GPU:
        raise UnsupportedError(NEEDS_GPU[job.variant.engine])
    lengths = _Lengths(job)
    checkpoint = find_checkpoint(
        job.model, job.variant, progress=session.terminal, device=device.torch_name, check_config=lengths.check_config
    )
    refuse_other_commit(job, job.model.id, checkpoint.revision)
    tokenizer = load_tokenizer(checkpoint)
    texts = lengths.of_texts(checkpoint.config, tokenizer)
    if texts:
        # A sweep needs them for the row of a cell that fails.
        session.keep(text_tokens=texts)
    plan = plan_quality(job, checkpoint, tokenizer, session.terminal)
    session.ready()
    if job.variant.gpus > 1 and job.variant.split == "layers":
        device = one_of_several(device, job.variant.gpus)
    with ExitStack() as stack:
        source = _open_source(job, device, session, checkpoint, stack)
        yield GenerationBench(job, source, checkpoint, device, session, tokenizer=tokenizer, plan=plan, stack=stack)


class GenerationBench(SourceBenchmarker):
    """A bench that also judges the model when everything is timed."""

    def __init__(
        self,
        job: GenerationJob,
        source: TokenSource,
        checkpoint: Checkpoint,
        device: Device,
        session: Session,
        *,
        tokenizer: Any | None,
        plan: Plan | None,
        stack: ExitStack,
    ) -> None:
        """Wrap an open token source.

        Args:
            plan: Of the quality; None where none is asked for.
            stack: Closes the source.
        """
        super().__init__(source, checkpoint.config, device, tokenizer=tokenizer, chat_template=job.model.chat_template)
        self._job = job
        self._session = session
        self._plan = plan
        self._stack = stack

    def cell(self, point: Point) -> GenerationCell:
        """What is known of a cell before it is measured."""
        return super().cell(point).model_copy(update={"text": self._job.grid.text_of(point)})

    def afterwards(self, record: Any, path: Path) -> dict[str, Any]:
        """Kernels counted, a profile, energy, the step checked and quality: each kept as soon as it is there."""
        job, session = self._job, self._session
        if job.procedure.profile:
            session.keep(**kernels_counted(job, record, self, session.terminal))
            session.keep(**profiled(job, session.record, self, path, session.terminal))
        if job.procedure.energy:
            session.keep(**with_energy(job, session.record, self, session.terminal))
        if job.part is None or job.part.profile:
            session.keep(**step_checked(job, session.record, self, session.terminal))
        return self._judge() if job.is_judged else {}

    def _judge(self) -> dict[str, Any]:
        """Fields of the record on quality. The source is handed over, so that it can make room for the baseline:
        nothing can be measured after this."""
        subject = Subject(self.source, self._stack.close)
        del self.source
        return judged(self._job, self._plan, subject, self._tokenizer, self.device, self._session.terminal)


class _Lengths:
    """Refuses prompts that cannot be made, or that do not fit, before any weight is read."""

    def __init__(self, job: GenerationJob) -> None:
        self._job = job

    def check_config(self, config: dict[str, Any]) -> None:
        """Before any weight is downloaded or made: prompts of a length."""
        for point in self._job.grid.points():
            if point.prompt_tokens is not None:
                self._check(point, point.prompt_tokens, config)

    def of_texts(self, config: dict[str, Any], tokenizer: Any | None) -> tuple[int, ...]:
        """Lengths of the prompts that are texts, each checked; the others are checked too."""
        lengths: dict[str | None, int] = {}
        for point in self._job.grid.points():
            prompt = make_prompt(
                point,
                tokenizer=tokenizer,
                vocabulary=config["vocab_size"],
                chat_template=self._job.model.chat_template,
            )
            self._check(point, len(prompt.ids), config)
            lengths[point.prompt] = len(prompt.ids)
        return tuple(lengths[text] for text in self._job.grid.prompts)

    def _check(self, point: Point, prompt_tokens: int, config: dict[str, Any]) -> None:
        check_fits(point, prompt_tokens, positions=config.get("max_position_embeddings"), model=self._job.model.id)


def _open_source(
    job: GenerationJob, device: Device, session: Session, checkpoint: Checkpoint, stack: ExitStack
) -> TokenSource:
    """The checkpoint, opened by the engine until the stack is closed.

    Raises:
        UnsupportedError: The engine is not installed, or does not take this form.
    """
    engine, form = ENGINES[job.variant.engine], form_of(job.variant, job.model.dtype)
    reason = engine.installed() or engine.takes(form, checkpoint)
    if reason:
        raise UnsupportedError(f"{engine.name}: {reason}")
    source: TokenSource = stack.enter_context(engine.open(checkpoint, form, device, session.terminal))
    _say_loaded(source.loaded, checkpoint, session)
    return source


def _say_loaded(facts: LoadFacts | None, checkpoint: Checkpoint, session: Session) -> None:
    model = session.record.model.model_copy(
        update={
            "revision": checkpoint.revision,
            "config_sha256": shapes_sha256(checkpoint.config),
            "files_sha256": None if checkpoint.revision else model_fingerprint(session.record.model.id),
            "parameters": facts.parameters if facts else None,
        }
    )
    session.keep(model=model, load=facts)
    if facts:
        session.terminal.line(
            f"loaded in {seconds(facts.load_s)}: weights {gib(facts.weight_bytes)}, "
            f"{facts.bits_per_weight:.2f} bits a weight, peak {gib(facts.peak_bytes)}"
        )
