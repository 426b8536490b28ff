"""Text generation as a workload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from benchmarker.schema.options import Option
from benchmarker.workloads.base import Workload
from benchmarker.workloads.generation import forms, generation_job
from benchmarker.workloads.generation import generation_metrics as declared
from benchmarker.workloads.generation.record import (
    GenerationRecord,
)
from benchmarker.workloads.generation.spec import Experiment, GenerationJob
from benchmarker.workloads.session import Bench, Judging, Session

if TYPE_CHECKING:
    from benchmarker.comparison.invariants import Check
    from benchmarker.comparison.rows import CellKey, Circumstance, Limitable
    from benchmarker.core.console import Terminal
    from benchmarker.core.tables import Column, Sheet
    from benchmarker.explain.values import NotExplained
    from benchmarker.explain.waterfall import Timed
    from benchmarker.hardware.device import Device
    from benchmarker.report.charts.style import Chart
    from benchmarker.report.compare import Comparison
    from benchmarker.workloads.generation.reading.generation_rows import GenerationRow


class Generation(Workload[GenerationJob, GenerationRecord, "GenerationRow"]):
    """One call that generates new tokens after a prompt."""

    name = "generation"
    question = "Which quantization of a model should I run, and in which engine?"
    unit = "token"
    experiment = Experiment
    job = GenerationJob
    record = GenerationRecord
    axes = declared.AXES
    metrics = declared.METRICS
    headline = declared.HEADLINE
    ranked_by = declared.RANKED_BY
    # The default model's code imports nearly all that another model's does.
    imports = (
        "benchmarker.workloads.generation.generation_bench",
        "torch",
        "transformers.models.auto.modeling_auto",
        "transformers.models.qwen3.modeling_qwen3",
    )
    example = "--quant int8 --prompt-tokens 26 --new-tokens 100"
    default_variant: ClassVar[Mapping[str, Any]] = {"quant": "fp16"}
    cell_opening = "prompt of "
    grid_heading = "prompt x new tokens"
    explains_runs = True
    must_be_equal = ("model", "model shapes (config_sha256)", "load_format")
    subject_fields = ("model",)
    baseline_noun = "unquantized form"
    surroundings_noun = "engine"

    # Command line and configuration

    overlay = staticmethod(generation_job.over)
    resolve = staticmethod(forms.resolve)
    check = staticmethod(generation_job.check)
    point_text = staticmethod(declared.point_words)
    point_arguments = staticmethod(declared.point_arguments)
    key_parts = staticmethod(generation_job.key_parts)
    record_fields = staticmethod(generation_job.record_fields)
    inputs = staticmethod(generation_job.inputs)
    lacking = staticmethod(generation_job.lacking)
    cell_fields = staticmethod(generation_job.cell_fields)
    sample_text = staticmethod(declared.sample_words)

    def options(self) -> list[Option]:
        from benchmarker.engines.registry import ENGINES
        from benchmarker.quantization.registry import LOADERS
        from benchmarker.schema.options import field_options

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
                "variant.quant": f"{', '.join(LOADERS)}; docs/config.md says what each is.",
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
            panels={
                "subject.model": "Model",
                "variant": "Variant",
                "grid": "Grid",
                "procedure": "Procedure",
                "subject.quality": "Quality",
            },
            repeated=("grid.prompts",),
            shorthands=(
                Option("--runtime", "variant.engine", "text", "Another name of --engine.", ""),
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

    # Measuring

    def open(self, job: GenerationJob, device: Device, session: Session) -> AbstractContextManager[Bench]:
        from benchmarker.workloads.generation.generation_bench import open_bench

        return open_bench(job, device, session)

    def look_for(self, job: GenerationJob) -> str | None:
        from benchmarker.checkpoints.find import look_for

        return look_for(job.model)

    def prepare(self, job: GenerationJob, device: Device, progress: Terminal) -> None:
        from benchmarker.quantization.load import prepare_checkpoint

        prepare_checkpoint(job.model, job.variant, device, progress)

    def judging(self) -> Judging[GenerationJob, GenerationRecord]:
        from benchmarker.workloads.generation.generation_quality import GenerationJudging

        return GenerationJudging()

    # Comparing records

    def cell_keys(self, record: GenerationRecord) -> list[CellKey]:
        from benchmarker.workloads.generation.reading.baseline import keys

        return keys(record)

    def circumstances(self, records: Sequence[GenerationRecord]) -> Mapping[str, Circumstance]:
        from benchmarker.workloads.generation.reading.baseline import model_names, model_revisions

        names, revisions = model_names(records), model_revisions(records)

        def revision(record: GenerationRecord) -> str | None:
            name = names.get(record.model.id, record.model.id)
            return record.model.revision if name == record.model.id else revisions.get(name)

        return {
            "model": lambda record: names.get(record.model.id, record.model.id),
            "model revision": revision,
            "model shapes (config_sha256)": lambda record: (record.model.config_sha256 or "")[:12] or None,
            "load_format": lambda record: record.model.load_format,
        }

    def row(self, fields: dict[str, Any], records: Sequence[GenerationRecord], good: Sequence[Any]) -> GenerationRow:
        from benchmarker.workloads.generation.reading.generation_rows import GenerationRow, row_fields

        return GenerationRow(**{**fields, **row_fields(records, good)})

    def with_baseline(self, rows: Sequence[GenerationRow], baseline: str | None) -> tuple[GenerationRow, ...]:
        from benchmarker.workloads.generation.reading.baseline import with_baseline

        return with_baseline(rows, baseline)

    def limitable(self) -> Mapping[str, Limitable]:
        from benchmarker.workloads.generation.reading.baseline import LIMITABLE

        return LIMITABLE

    def checks(self, record: GenerationRecord) -> Iterable[Check]:
        from benchmarker.workloads.generation.reading.generation_checks import checks

        return checks(record)

    # Explaining and showing

    def timed(self, name: str, records: Sequence[GenerationRecord]) -> Timed | NotExplained:
        from benchmarker.workloads.generation.reading.token_time import timed_token

        return timed_token(name, records)

    def cell_columns(self, rows: Sequence[Any], *, always: bool = False) -> Sequence[Column[Any]]:
        from benchmarker.workloads.generation.reading import generation_tables

        return generation_tables.cell_columns(rows, always=always)

    def timing_columns(self, rows: Sequence[GenerationRow]) -> Sequence[Column[Any]]:
        from benchmarker.workloads.generation.reading import generation_tables

        return generation_tables.timing(rows)

    def cost_columns(self, rows: Sequence[GenerationRow], *, whole: bool = False) -> Sequence[Column[Any]]:
        from benchmarker.workloads.generation.reading import generation_tables

        return generation_tables.every_cell(rows) if whole else generation_tables.costs(rows)

    def brief_columns(self, rows: Sequence[GenerationRow]) -> tuple[Sequence[Column[Any]], Sequence[Column[Any]]]:
        from benchmarker.workloads.generation.reading import generation_tables

        return generation_tables.brief(rows), generation_tables.quality_brief(rows)

    def command(self, records: Sequence[GenerationRecord]) -> str:
        from benchmarker.workloads.generation.reading.generation_tables import generate_command

        return generate_command(records)

    def detail_sheets(self, rows: Sequence[GenerationRow]) -> Sequence[Sheet]:
        from benchmarker.workloads.generation.reading.quality_tables import judgement_sheets

        return judgement_sheets(rows)

    def limit_sheet(self, rows: Sequence[GenerationRow], *, whole: bool = False) -> Sheet | None:
        from benchmarker.workloads.generation.reading.generation_tables import limit_rows
        from benchmarker.workloads.generation.reading.limit_tables import beside_limits

        return beside_limits(limit_rows(rows) if whole else rows)

    def header(self, records: Sequence[GenerationRecord], *, is_run: bool = False) -> Sequence[str]:
        from benchmarker.workloads.generation.reading.generation_tables import header, load_words, variant_line

        if not is_run:
            return header(records)
        return variant_line(records[0]), *header(records), *load_words(records[0])

    def remarks(self, rows: Sequence[GenerationRow], baseline: str | None, *, brief: bool = False) -> Sequence[str]:
        from benchmarker.workloads.generation.reading.batch_crossover import crossover_words

        return () if brief else crossover_words(rows, baseline)

    def caveats(
        self, records: Sequence[GenerationRecord], rows: Sequence[GenerationRow], *, baseline: str | None = None
    ) -> Sequence[str]:
        from benchmarker.comparison.rows import headline_rows
        from benchmarker.workloads.generation.reading.generation_caveats import caveats
        from benchmarker.workloads.generation.reading.quality_tables import text_line

        return *caveats(records, rows), *text_line(headline_rows(rows), baseline)

    def charts(self, comparison: Comparison) -> list[Chart]:
        from benchmarker.workloads.generation.reading.generation_charts import charts_of

        return charts_of(comparison)

    def predictions(self, comparison: Comparison) -> tuple[Sequence[str], Sequence[str]]:
        from benchmarker.workloads.generation.reading.limit_tables import break_evens, ceilings

        return ceilings(comparison), break_evens(comparison)


WORKLOAD = Generation()
