"""The workload serving: its options, metrics and reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ValidationError

from benchmarker.checkpoints.cache import expected_model
from benchmarker.checkpoints.files import model_fingerprint
from benchmarker.checkpoints.find import look_for
from benchmarker.core.errors import FieldError, SpecError, UnsupportedError
from benchmarker.core.formatting import ms, plural, rate
from benchmarker.engines.external.servers import SERVERS
from benchmarker.engines.registry import ENGINES
from benchmarker.quantization.load import find_and_prepare
from benchmarker.quantization.registry import resolved_quant
from benchmarker.schema.base import first_problem
from benchmarker.schema.model import AUTO
from benchmarker.schema.options import GROUPS, Option, field_options
from benchmarker.schema.registry import Axis, Metric, metric
from benchmarker.workloads.base import Workload
from benchmarker.workloads.generation.generation_job import renamed, with_checkpoint
from benchmarker.workloads.generation.spec import ModelSubject
from benchmarker.workloads.serving import serving_statistics as statistics
from benchmarker.workloads.serving.load_generator import why_no_generator
from benchmarker.workloads.serving.reading import serving_reading as reading
from benchmarker.workloads.serving.reading import serving_tables as tables
from benchmarker.workloads.serving.reading.serving_bounds import explained
from benchmarker.workloads.serving.reading.serving_reading import ServingRow
from benchmarker.workloads.serving.record import Load, ServingCell, ServingRecord, ServingVariantFacts
from benchmarker.workloads.serving.serving_requests import read_dataset
from benchmarker.workloads.serving.slo import parse_slo
from benchmarker.workloads.serving.spec import ServingExperiment, ServingJob, ServingPoint, ServingVariant
from benchmarker.workloads.session import Bench, Session

if TYPE_CHECKING:
    from benchmarker.comparison.rows import Circumstance
    from benchmarker.core.console import Terminal
    from benchmarker.hardware.device import Device
    from benchmarker.report.charts.style import Chart
    from benchmarker.report.compare import Comparison

NOT_MEASURED = ("procedure.profile", "procedure.profile_tokens", "procedure.energy", "procedure.limits")
"""Fields without a meaning for a server, which is another process."""
LACKING = ("", "0", "0.0")  # Values by which a cell shows that it does not use an axis.
TIMES = {
    "ttft": "seconds from the start of a request to its first token",
    "tpot": "(E2EL - TTFT) / (output tokens - 1) of a request",
    "itl": "seconds between two consecutive tokens of a request",
    "e2el": "seconds from the start of a request to its last token",
}
PERCENTILES = {"": 0.5, "p90": 0.9, "p99": 0.99}


def _time_metric(name: str, level: str, share: float) -> Metric:
    def value(load: Load) -> float | None:
        if name == "itl":
            return statistics.itl_percentile_s(load, share) or None  # 0: below the resolution.
        return statistics.percentile(statistics.values_s(load, name), share)

    words = "median" if share == 0.5 else f"{level}, of {round(statistics.BEYOND / (1 - share))} requests or more"
    return metric(
        f"{name}_{level}".strip("_"),
        " ".join(filter(None, (name.upper(), level, "ms"))),
        f"{TIMES[name]}: {words}",
        of_sample=lambda cell, load: value(load),
    )


def _rate_metric(name: str, heading: str, formula: str, value_of: Callable[[Any], float | None]) -> Metric:
    return metric(name, heading, formula, better="higher", of_sample=lambda cell, load: value_of(load))


def goodput(record: Any, cell: Any) -> float | None:
    """Return the good requests per second of all loads of a cell, None without loads. Arguments may be parsed JSON."""
    slo = parse_slo(record.procedure["slo"])
    good = sum(statistics.good(load, cell.new_tokens, slo) for load in cell.samples)
    return good / sum(map(statistics.load_s, cell.samples)) if cell.samples else None


METRICS = (
    _rate_metric(
        "output_tokens",
        "output tok/s",
        "tokens of all requests, divided by the seconds from the first start to the last end",
        statistics.output_tokens_per_s,
    ),
    _rate_metric("user_tokens", "tok/s/user", "1 / median TPOT", statistics.user_tokens_per_s),
    *(_time_metric(name, level, share) for name in TIMES for level, share in PERCENTILES.items()),
    _rate_metric("request_throughput", "req/s", "requests that ended, per second", statistics.requests_per_s),
    metric(
        "joules_per_token",
        "J/token",
        "joules of the GPU during the load, idle power and prefill included, divided by the output tokens",
        of_sample=lambda cell, load: statistics.joules_per_token(load),
    ),
    metric(  # Averaged like req/s, which it would exceed otherwise.
        "goodput", "goodput req/s", "good requests per second", better="higher", of_cell=goodput, combine="geometric"
    ),
)


class Serving(Workload[ServingJob, ServingRecord, ServingRow]):
    name = "serving"
    unit = "load"
    experiment = ServingExperiment
    job = ServingJob
    record = ServingRecord
    axes = (
        Axis(
            "prompt_tokens", "prompt", lambda tokens: plural(tokens, "prompt token", "prompt tokens") if tokens else ""
        ),
        Axis("new_tokens", "new", lambda tokens: plural(tokens, "new token", "new tokens")),
        Axis("length_spread", "spread", lambda share: f"lengths ±{100 * share:g} %" if share else "", is_size=False),
        Axis("shared_prefix", "prefix", lambda count: f"{count} shared tokens" if count else "", is_size=False),
        Axis("dataset", "dataset", lambda label: label, is_size=False),
        Axis("rate", "req/s", lambda rate: f"{rate:g} requests/s" if rate else ""),
        Axis("concurrency", "at once", lambda users: f"{users} at once" if users else ""),
    )
    metrics = METRICS
    headline = "output_tokens"
    example = "--engine vllm --quant fp16 --concurrency 1,4,16,64"
    default_variant: ClassVar[Mapping[str, Any]] = {"quant": AUTO}
    explains_runs = True
    must_be_equal = ("model", "model shapes (config_sha256)", "load_format", "requests", "slo")
    subject_fields = ("model",)
    baseline_noun = "unquantized variant"
    surroundings_noun = "engine"
    speed_axis = "output tokens per second"

    # Command line and configuration

    def options(self) -> list[Option]:
        flags = {
            "subject.model.id": "--model",
            "variant.options": "--option",
            "variant.engine_options": "--engine-option",
            # A sweep has a `--seed` of its own.
            "procedure.seed": "--input-seed",
        }
        helps = {
            "variant.options": "The quantization's own, as key=value; repeat it.",
            "variant.engine_options": "The server's own, as key=value; repeat it.",
        }
        panels = {"subject.model": "Model", **GROUPS, "grid": "Load"}
        options = field_options(self.job, flags=flags, helps=helps, panels=panels)
        return [option for option in options if option.place not in NOT_MEASURED]

    def overlay(self, typed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the typed values. A typed rate clears the config's concurrencies, a typed concurrency its rates."""
        if typed.get("grid.rate"):
            return {"grid.concurrency": [], **typed}
        return {**typed, "grid.rate": []} if typed.get("grid.concurrency") else dict(typed)

    def point_arguments(self, point: Any) -> list[str]:
        """Return the options of this cell. Axes that are 0 or empty are left out, because no option accepts 0."""
        words = super().point_arguments(point)
        return [word for pair in zip(words[::2], words[1::2], strict=True) if pair[1] not in LACKING for word in pair]

    def resolve(self, variant: ServingVariant, subject: ModelSubject | None = None) -> ServingVariant:
        if variant.url:
            return variant
        try:
            SERVERS[variant.engine].options.model_validate(variant.engine_options)
        except ValidationError as error:
            reason = first_problem(error, SERVERS[variant.engine].options)
            raise FieldError(reason, field="engine_options") from None
        found = with_checkpoint(variant, subject.model if subject else None)
        return renamed(found if found.quant == AUTO else resolved_quant(found), variant)

    def check(self, job: ServingJob, typed: Mapping[str, Any]) -> None:
        if typed.get("subject.model.chat_template"):
            raise SpecError("--chat-template: wraps a text, and prompts are random token ids here; leave it out")
        if job.variant.url and typed.get("variant.engine"):
            raise SpecError("--engine: starts a server, and --url names one that is already running; leave one out")
        if job.variant.gpus > 1 and not job.variant.url:
            engine = ENGINES[SERVERS[job.variant.engine].engine]
            from benchmarker.workloads.serving.serving_bench import form_of

            if reason := engine.why_not_split(form_of(job)):
                raise UnsupportedError(f"--gpus {job.variant.gpus}: {job.variant.engine}: {reason}")
        procedure, grid = job.procedure, job.grid
        if read_dataset(job.grid.dataset) and job.variant.url:
            raise SpecError("--dataset: needs the model's tokenizer, and --url has none; leave one of them out")
        if grid.shared_prefix and procedure.runs > 1:
            raise SpecError(
                "--runs: a second load would find all its prompts in the prefix cache; use rounds of a sweep"
            )
        if procedure.energy:
            raise SpecError("procedure.energy: is counted during each load, if the GPU has a counter; leave it out")
        for name in ("profile", "limits"):
            if getattr(procedure, name):
                raise SpecError(f"procedure.{name}: is not measured for a server, which is another process")

    # Measuring

    def open(self, job: ServingJob, device: Device, session: Session) -> AbstractContextManager[Bench]:
        from benchmarker.workloads.serving.serving_bench import open_bench

        return open_bench(job, device, session)

    def look_for(self, job: ServingJob) -> str | None:
        return None if job.variant.url else look_for(job.model)

    def lacking(self, job: ServingJob) -> str | None:
        return why_no_generator() or (None if job.variant.url else SERVERS[job.variant.engine].why_not_installed())

    def prepare(self, job: ServingJob, device: Device, progress: Terminal) -> None:
        if not job.variant.url:
            find_and_prepare(job.model, job.variant, device, progress, is_external=True)

    def key_parts(self, job: ServingJob) -> dict[str, Any]:
        dataset = read_dataset(job.grid.dataset)
        return {
            "model": job.model.model_dump(mode="json"),
            "files": model_fingerprint(job.model.id),
            "variant": job.variant.model_dump(mode="json", exclude={"name"}),
            "load": job.procedure.model_dump(include={"requests", "seed"}),
            "dataset": dataset.sha256 if dataset else None,
        }

    def inputs(self, job: ServingJob, *, judged: bool) -> dict[str, str]:  # noqa: ARG002
        files, dataset = model_fingerprint(job.model.id), read_dataset(job.grid.dataset)
        inputs = {f"model {job.model.id}": files} if files else {}
        return {**inputs, f"dataset {job.grid.dataset}": dataset.sha256} if dataset else inputs

    def cell_fields(self, job: ServingJob, point: ServingPoint, records: Sequence[ServingRecord]) -> dict[str, Any]:  # noqa: ARG002
        dataset = read_dataset(job.grid.dataset)
        return {**point._asdict(), "dataset": dataset.label if dataset else ""}

    def record_fields(self, job: ServingJob) -> dict[str, Any]:
        variant, fields = job.variant, job.variant.model_dump(exclude={"checkpoint", "split"})
        return {
            "model": expected_model(job.subject.model, job.model),
            "variant": ServingVariantFacts(**fields, split=variant.split if variant.gpus > 1 else None),
        }

    def sample_text(self, cell: ServingCell, load: Load) -> str:  # noqa: ARG002
        """Return `200 requests, 1204 tok/s, TTFT 45.2 ms, TPOT 12.1 ms`."""
        texts = [f"{len(load.errors)} requests", rate(statistics.output_tokens_per_s(load) or 0.0)]
        times = {name: statistics.values_s(load, name) for name in ("ttft", "tpot")}
        return ", ".join(
            [*texts, *(f"{name.upper()} {ms(median(times_s))}" for name, times_s in times.items() if times_s)]
        )

    # Reading

    def circumstances(self, records: Sequence[ServingRecord]) -> Mapping[str, Circumstance]:
        # Another checkpoint has its own revision, and a server that was already running reports neither value.
        own = next((record.model for record in records if record.server and record.is_of_own_model), None)

        def revision(record: ServingRecord) -> str | None:
            model = record.model if record.is_of_own_model else own
            return model.revision if model else None

        def shapes(record: ServingRecord) -> str | None:
            return (own if own and record.variant.url else record.model).config_sha256

        return {
            "model": lambda record: record.model.id,
            "model revision": revision,
            "model shapes (config_sha256)": lambda record: (shapes(record) or "")[:12] or None,
            "load_format": lambda record: record.model.load_format,
            "requests": lambda record: str(record.procedure.get("requests")),
            "seed of the requests": lambda record: str(record.procedure.get("seed")),
            "slo": lambda record: str(record.procedure.get("slo")),
        }

    row = staticmethod(reading.make_row)
    checks = staticmethod(reading.checks)
    timed = staticmethod(explained)
    cell_columns = staticmethod(tables.cell_columns)
    timing_columns = staticmethod(tables.timing_columns)
    cost_columns = staticmethod(tables.cost_columns)
    brief_columns = staticmethod(tables.brief_columns)
    header = staticmethod(tables.header)
    remarks = staticmethod(reading.remarks)
    caveats = staticmethod(reading.caveats)

    def charts(self, comparison: Comparison) -> list[Chart]:
        from benchmarker.workloads.serving.reading.serving_charts import charts_of

        return charts_of(comparison)


WORKLOAD = Serving()
