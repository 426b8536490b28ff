"""Text generation as a workload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from benchmarker.checkpoints.find import look_for
from benchmarker.core.formatting import plural
from benchmarker.engines.registry import ENGINES
from benchmarker.hardware.device import Device, one_of_several
from benchmarker.measure.clock import GenerationSample
from benchmarker.quantization.load import prepare_checkpoint
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.model import AUTO
from benchmarker.schema.options import GROUPS, Option, field_options
from benchmarker.schema.registry import Axis, metric
from benchmarker.workloads.base import Workload
from benchmarker.workloads.generation import generation_job
from benchmarker.workloads.generation.reading import baseline as generation_baseline
from benchmarker.workloads.generation.reading import generation_tables, limit_tables, quality_tables
from benchmarker.workloads.generation.reading.batch_crossover import crossover_words
from benchmarker.workloads.generation.reading.generation_caveats import caveats
from benchmarker.workloads.generation.reading.generation_rows import GenerationRow, make_generation_row
from benchmarker.workloads.generation.reading.token_time import timed_token
from benchmarker.workloads.generation.record import GenerationCell, GenerationRecord, tokens_per_step
from benchmarker.workloads.generation.spec import Experiment, GenerationJob, Point
from benchmarker.workloads.session import Bench, Judging, Session

if TYPE_CHECKING:
    from benchmarker.comparison.invariants import Check
    from benchmarker.comparison.rows import Circumstance, Limitable
    from benchmarker.core.console import Terminal
    from benchmarker.report.charts.style import Chart
    from benchmarker.report.compare import Comparison

METRICS = (
    metric(
        "latency",
        "latency s",
        "seconds from the call to the last token, with the device drained at both ends",
        of_sample=lambda cell, sample: sample.latency_s,
    ),
    metric(
        "ttft",
        "TTFT ms",
        "seconds from the call until the first new token is known",
        of_sample=lambda cell, sample: sample.ttft_s,
    ),
    metric(
        "tpot",
        "TPOT ms",
        "seconds from the first new token to the last, divided by the tokens after the first",
        of_sample=lambda cell, sample: sample.tpot_s,
    ),
    metric(
        "decode",
        "decode tok/s",
        "new tokens of all sequences after the first, divided by the seconds from the first to the last",
        better="higher",
        of_latency=lambda cell, tpot_s: cell.batch_size / tpot_s,
        time=lambda cell, sample: sample.tpot_s,
    ),
    metric(
        "tok/s",
        "tok/s",
        "new tokens of all sequences, divided by the latency",
        better="higher",
        of_latency=lambda cell, latency_s: cell.new_tokens * cell.batch_size / latency_s,
    ),
    metric(
        "tok/step",
        "tok/step",
        "tokens of a decode step of one sequence with speculative decoding: its own, and the drafts that the engine "
        "counted as accepted",
        better="higher",
        of_sample=tokens_per_step,
    ),
)
AXES = (
    Axis("prompt_tokens", "prompt", str, size=lambda point: point.prompt_tokens or len(point.prompt or "")),
    Axis("new_tokens", "new", lambda tokens: plural(tokens, "new token", "new tokens")),
    Axis("batch_size", "batch", lambda sequences: f"batch of {sequences}" if sequences > 1 else ""),
    Axis("depth", "depth", lambda tokens: f"after {tokens} in the cache" if tokens else ""),
)


class TextGeneration(Workload[GenerationJob, GenerationRecord, GenerationRow]):
    """One call that generates new tokens after a prompt."""

    name = "generation"
    unit = "token"
    experiment = Experiment
    job = GenerationJob
    record = GenerationRecord
    axes = AXES
    metrics = METRICS
    headline = "tok/s"
    # tok/s ranks cells of one new token, which have no decode rate. TTFT varies with the host.
    ranked_by = ("decode", "tok/s")
    # The code of the default model imports nearly everything that the code of other models imports.
    imports = (
        "benchmarker.workloads.generation.generation_bench",
        "torch",
        "transformers.models.auto.modeling_auto",
        "transformers.models.qwen3.modeling_qwen3",
    )
    example = "--quant int8 --prompt-tokens 26 --new-tokens 100"
    default_variant: ClassVar[Mapping[str, Any]] = {"quant": AUTO}
    cell_opening = "prompt of "
    grid_heading = "prompt x new tokens"
    explains_runs = True
    must_be_equal = ("model", "model shapes (config_sha256)", "load_format")
    subject_fields = ("model",)
    baseline_noun = "unquantized variant"
    surroundings_noun = "engine"

    # Command line and configuration

    overlay = staticmethod(generation_job.overlay)
    resolve = staticmethod(generation_job.resolve)
    check = staticmethod(generation_job.check)
    key_parts = staticmethod(generation_job.key_parts)
    record_fields = staticmethod(generation_job.record_fields)
    inputs = staticmethod(generation_job.inputs)
    lacking = staticmethod(generation_job.lacking)
    cell_fields = staticmethod(generation_job.cell_fields)

    def options(self) -> list[Option]:
        return field_options(
            self.job,
            flags={
                "subject.model.id": "--model",
                "variant.options": "--option",
                "variant.engine_options": "--engine-option",
                "grid.prompts": "--prompt",
                "subject.quality.size": "--quality",
                "subject.quality.text": "--eval-text",
                "subject.quality.top_k": "--quality-topk",
                "subject.quality.baseline": "--quality-baseline",
            },
            helps={
                "variant.quant": f"{', '.join(LOADERS)}; docs/config.md says what each is.  "
                "\\[default: the checkpoint's own, or fp16]",
                "variant.options": "The quantization's own, as key=value; repeat it.",
                "variant.engine": f"{', '.join(ENGINES)}; docs/engines.md says what each is.",
                "variant.engine_options": "The engine's own, as key=value; repeat it.",
                "variant.split": (
                    "How several GPUs share the model: tensors (all of them work on each token) or layers (they take "
                    "turns)."
                ),
                "grid.prompts": "A prompt text in place of lengths; repeat it.",
                "subject.quality.text": (
                    "Text file, or data set as NAME:CONFIG:SPLIT.  \\[default: the text that ships with benchmarker]"
                ),
            },
            panels={"subject.model": "Model", **GROUPS, "subject.quality": "Quality"},
            repeated=("grid.prompts",),
            shorthands=(
                Option("--compile", "variant.engine", "flag", "Short for --engine compile.", "", value="compile"),
                Option(
                    "--calibration",
                    "variant.options",
                    "text",
                    "Text file that GPTQ is calibrated on.",
                    "",
                    key="calibration",
                ),
            ),
        )

    def point_text(self, point: Point) -> str:
        """Return `26 x 100, batch 4` (prompt x new tokens); for a text prompt, the beginning of the text."""
        prompt = str(point.prompt_tokens) if point.prompt is None else repr(point.prompt[:24])
        batch = f", batch {point.batch_size}" if point.batch_size > 1 else ""
        batch += ", same prompt" if point.batch_size > 1 and not point.has_distinct_prompts else ""
        depth = f", depth {point.depth}" if point.depth else ""
        return f"{prompt} x {point.new_tokens}{batch}{depth}"

    def point_arguments(self, point: Point) -> list[str]:
        if point.prompt_tokens is not None:
            arguments = ["--prompt-tokens", str(point.prompt_tokens)]
        else:
            arguments = ["--prompt", point.prompt or ""]
        arguments += ["--new-tokens", str(point.new_tokens), "--batch-size", str(point.batch_size)]
        arguments += ["--depth", str(point.depth)] if point.depth else []
        return arguments + (["--same-prompt"] if point.batch_size > 1 and not point.has_distinct_prompts else [])

    def sample_text(self, cell: GenerationCell, sample: GenerationSample) -> str:
        """Return `100 tokens, 34.10 tok/s`."""
        tokens = cell.batch_size * sample.new_tokens
        return f"{plural(tokens, 'token', 'tokens')}, {tokens / sample.latency_s:.2f} tok/s"

    # Measuring

    @contextmanager
    def open(self, job: GenerationJob, device: Device, session: Session) -> Iterator[Bench]:
        from benchmarker.workloads.generation.generation_bench import GenerationBench, find_inputs

        variant = job.variant
        if variant.gpus > 1 and variant.split == "layers":
            device = one_of_several(device, variant.gpus)
        form = generation_job.form_of(variant, job.model.dtype)
        inputs = find_inputs(job, form, device, session)
        with ExitStack() as stack:
            opened = ENGINES[variant.engine].open(inputs.checkpoint, form, device, session.terminal)
            # No variable holds the source, because the bench frees the model to measure quality.
            yield GenerationBench(job, stack.enter_context(opened), inputs, device, session, stack)

    def look_for(self, job: GenerationJob) -> str | None:
        return look_for(job.model)

    def prepare(self, job: GenerationJob, device: Device, progress: Terminal) -> None:
        from benchmarker.workloads.generation.generation_bench import found_checkpoint

        prepare_checkpoint(found_checkpoint(job, device, progress), job.variant, job.model.dtype, device, progress)

    def judging(self) -> Judging[GenerationJob, GenerationRecord]:
        from benchmarker.workloads.generation.generation_quality import GenerationJudging

        return GenerationJudging()

    # Comparing records

    cell_keys = staticmethod(generation_baseline.keys)
    with_baseline = staticmethod(generation_baseline.with_baseline)
    row = staticmethod(make_generation_row)

    def circumstances(self, records: Sequence[GenerationRecord]) -> Mapping[str, Circumstance]:
        names = generation_baseline.model_names(records)
        # Reversed: the revision of a model's first record has precedence.
        revisions = {record.model.id: record.model.revision for record in reversed(records) if record.load}

        def revision(record: GenerationRecord) -> str | None:
            name = names.get(record.model.id, record.model.id)
            return record.model.revision if name == record.model.id else revisions.get(name)

        return {
            "model": lambda record: names.get(record.model.id, record.model.id),
            "model revision": revision,
            "model shapes (config_sha256)": lambda record: (record.model.config_sha256 or "")[:12] or None,
            "load_format": lambda record: record.model.load_format,
        }

    def limitable(self) -> Mapping[str, Limitable]:
        return generation_baseline.LIMITABLE

    def checks(self, record: GenerationRecord) -> Iterable[Check]:
        from benchmarker.workloads.generation.reading.generation_checks import checks

        return checks(record)

    # Explaining and showing

    timed = staticmethod(timed_token)
    cell_columns = staticmethod(generation_tables.cell_columns)
    timing_columns = staticmethod(generation_tables.timing)
    cost_columns = staticmethod(generation_tables.costs)
    brief_columns = staticmethod(generation_tables.brief)
    command = staticmethod(generation_tables.generate_command)
    detail_sheets = staticmethod(quality_tables.judgement_sheets)
    limit_sheets = staticmethod(limit_tables.limit_sheets)
    header = staticmethod(generation_tables.header)
    caveats = staticmethod(caveats)

    def remarks(self, rows: Sequence[GenerationRow], baseline: str | None, *, brief: bool = False) -> Sequence[str]:
        return () if brief else crossover_words(rows, baseline)

    def charts(self, comparison: Comparison) -> list[Chart]:
        from benchmarker.workloads.generation.reading.generation_charts import charts_of

        return charts_of(comparison)

    def predictions(self, comparison: Comparison) -> tuple[Sequence[str], Sequence[str]]:
        return limit_tables.ceilings(comparison), limit_tables.break_evens(comparison)


WORKLOAD = TextGeneration()
