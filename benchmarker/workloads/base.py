"""The interface of a workload: measurement, comparison and presentation.

A new workload needs a subclass of `Workload` in `workloads/NAME/workload.py` and an entry in `schema/registry.py`. The
subclass is imported to read records and to parse a command line, so its methods import heavy libraries when called.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Generic, cast, final, get_args

from typing_extensions import TypeVar

from benchmarker.comparison.rows import CellKey, Circumstance, Limitable, Row, headline_rows
from benchmarker.core.formatting import significant
from benchmarker.core.tables import plain_line
from benchmarker.explain.waterfall import NotExplained, Timed, timed_profile
from benchmarker.report import columns
from benchmarker.report.caveats import machine_lines, plain_caveats
from benchmarker.schema.job import Job
from benchmarker.schema.options import Option, field_options, flags_of
from benchmarker.schema.record import CellBase, RunRecord, SampleBase, VariantFacts
from benchmarker.schema.registry import Axis, Metric

if TYPE_CHECKING:
    from benchmarker.comparison.invariants import Check
    from benchmarker.core.console import Terminal
    from benchmarker.core.tables import Column, Sheet
    from benchmarker.hardware.device import Device
    from benchmarker.report.charts.style import Chart
    from benchmarker.report.compare import Comparison
    from benchmarker.schema.job import ExperimentBase
    from benchmarker.workloads.session import Bench, Judging, Session

JobT = TypeVar("JobT", bound=Job, default=Job)
RecordT = TypeVar("RecordT", bound=RunRecord, default=RunRecord)
RowT = TypeVar("RowT", bound=Row, default=Row)


class Workload(Generic[JobT, RecordT, RowT]):
    """A kind of measurement, with everything that other packages need from it."""

    name: ClassVar[str]
    unit: ClassVar[str]  # Unit of one repeat: `token`, `call`, `step`.
    experiment: ClassVar[type[ExperimentBase]]
    job: type[JobT]
    record: type[RecordT]
    axes: ClassVar[tuple[Axis, ...]]
    metrics: ClassVar[tuple[Metric, ...]]
    headline: ClassVar[str]
    """Name of the metric that a sweep shows while it runs, and that ranks rows if `ranked_by` is empty."""
    ranked_by: ClassVar[tuple[str, ...]] = ()  # Metrics that rank rows by name; the first that a cell has is used.
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules that every process of a sweep imports; with shared imports, a sweep imports them once per round."""
    example: ClassVar[str] = ""  # Example arguments of `benchmarker run`.
    default_variant: ClassVar[Mapping[str, Any]] = {}  # Variant that is measured if none is named.
    cell_opening: ClassVar[str] = "cell: "
    """First words of the line that is printed before a cell is measured; a sweep filters such lines."""
    grid_heading: ClassVar[str] = "cells"  # Heading of the list of cells in a sweep's plan.
    explains_runs: ClassVar[bool] = False
    """True if a single run prints the explanation of its time instead of a row for each cell."""
    must_be_equal: ClassVar[tuple[str, ...]] = ()  # Circumstances that `gate` also requires to be equal.
    subject_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of a record that describe the measured subject; they are part of a cell's key."""
    baseline_noun: ClassVar[str] = "baseline"  # Noun in texts for the variant of comparison, as `unquantized variant`.
    surroundings_noun: ClassVar[str] = "table"  # Noun for the property that a row shares with its baseline: `engine`.
    speed_axis: ClassVar[str] = ""
    """Label of the ranking metric on a chart's axis; by default the heading of its column."""

    # Command line and configuration

    def options(self) -> list[Option]:
        return field_options(self.job)

    def overlay(self, typed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the typed values, such as {"grid.tokens": [4096]}, with empty values for the fields they replace."""
        return dict(typed)

    def resolve(self, variant: Any, subject: Any = None) -> Any:  # noqa: ARG002
        """Return the variant with names in place of aliases, and with the defaults that depend on the subject.

        Raises FieldError. `subject` is None while a config is read.
        """
        return variant

    def check(self, job: JobT, typed: Mapping[str, Any]) -> None:
        """Raise BenchmarkerError for a job that would fail, or for typed options that would have no effect."""

    def point_text(self, point: Any) -> str:
        return ", ".join(filter(None, (axis.words(getattr(point, axis.name)) for axis in self.axes)))

    def point_arguments(self, point: Any) -> list[str]:
        """Return the options of `benchmarker run` that measure only this cell, as ["--prompt-tokens", "26"]."""
        flags = flags_of(self.options())
        return [word for axis in self.axes for word in (flags[f"grid.{axis.name}"], str(getattr(point, axis.name)))]

    # Measuring

    def open(self, job: JobT, device: Device, session: Session) -> AbstractContextManager[Bench]:
        raise NotImplementedError

    def key_parts(self, job: JobT) -> dict[str, Any]:
        return {
            "subject": job.subject.model_dump(mode="json"),
            "variant": job.variant.model_dump(mode="json", exclude={"name"}),
        }

    def record_fields(self, job: JobT) -> dict[str, Any]:
        """Return the fields of a record that are known before the run begins."""
        return {"variant": VariantFacts(name=job.variant.name, options=job.variant.model_dump(exclude={"name"}))}

    def inputs(self, job: JobT, *, judged: bool) -> dict[str, str]:  # noqa: ARG002
        """Return the fingerprint of each file that a job reads; if `judged`, also of files read only for quality."""
        return {}

    def look_for(self, job: JobT) -> str | None:  # noqa: ARG002
        """Check that the job's files exist; return their hub commit, None for local files. Raises BenchmarkerError."""
        return None

    def lacking(self, job: JobT) -> str | None:  # noqa: ARG002
        """Return the missing libraries of a job, with the remedy, for the plan of a sweep; None if none is missing."""
        return None

    def prepare(self, job: JobT, device: Device, progress: Terminal) -> None:
        """Download or build the files that a job loads. Raises BenchmarkerError."""

    def cell_fields(self, job: JobT, point: Any, records: Sequence[RecordT]) -> dict[str, Any] | None:  # noqa: ARG002
        """Return the axes of a cell that was not measured; None if they depend on records that do not exist yet."""
        return {axis.name: getattr(point, axis.name) for axis in self.axes}

    def sample_text(self, cell: Any, sample: Any) -> str:
        """Return the text that is printed after a repeat's latency, such as "34.1 tok/s"."""
        return f"{significant(self.rate(cell, sample))} {self.rate_unit}"

    def judging(self) -> Judging[JobT, RecordT] | None:
        """Return the workload's measurements of quality; None if it has none."""
        return None

    # Comparing records

    def cell_keys(self, record: RecordT) -> list[CellKey]:
        return [
            CellKey(tuple((axis.name, getattr(cell, axis.name)) for axis in self.axes), record.workload)
            for cell in record.cells
        ]

    def circumstances(self, records: Sequence[RecordT]) -> Mapping[str, Circumstance]:  # noqa: ARG002
        """Return values that must be equal in all records, by name, in addition to device, driver and versions."""
        return {}

    def row(self, fields: dict[str, Any], records: Sequence[RecordT], good: Sequence[Any]) -> RowT:  # noqa: ARG002
        """Return a row: `fields` are the values common to all workloads, `good` the records that measured the cell."""
        return cast("RowT", Row(**fields))

    def with_baseline(self, rows: Sequence[RowT], baseline: str | None) -> tuple[RowT, ...]:  # noqa: ARG002
        """Return the rows, with the values added that depend on the baseline's row."""
        return tuple(rows)

    def limitable(self) -> Mapping[str, Limitable]:
        """Return the quantities that a budget can limit, by name, in addition to memory and the metrics."""
        return {}

    def checks(self, record: RecordT) -> Iterable[Check]:  # noqa: ARG002
        """Return the workload's own checks of a record in `benchmarker verify`."""
        return ()

    # Explaining

    def timed(self, name: str, records: Sequence[RecordT]) -> Timed | NotExplained:
        """Return the profile of one unit (token, call, step) of a variant, with its time without the profiler."""
        return timed_profile(name, records)

    # Showing

    def cell_columns(self, rows: Sequence[Any], *, always: bool = False) -> Sequence[Column[Any]]:
        """Return the columns of the axes that vary; with `always`, of all axes."""
        return columns.axis_columns(rows, always=always)

    def timing_columns(self, rows: Sequence[RowT]) -> Sequence[Column[Any]]:
        return columns.metric_columns(rows)

    def cost_columns(self, rows: Sequence[RowT], *, whole: bool = False) -> Sequence[Column[Any]]:
        """Return the columns of memory and other costs; fewer if `whole`, for the table of all cells."""
        return columns.memory(rows) if whole else columns.plain_costs(rows)

    def brief_columns(self, rows: Sequence[RowT]) -> tuple[Sequence[Column[Any]], Sequence[Column[Any]]]:
        """Return the first table's columns to the left of the ranking metric, and its columns of quality."""
        return columns.latency_columns(rows), columns.quality_columns(rows)

    def command(self, records: Sequence[RecordT]) -> str:  # noqa: ARG002
        """Return the command with which a user runs the variant (`benchmarker generate ...`); empty if none exists."""
        return ""

    def detail_sheets(self, rows: Sequence[RowT]) -> Sequence[Sheet]:  # noqa: ARG002
        """Return further tables of the cell that the first table shows."""
        return ()

    def limit_sheets(self, rows: Sequence[RowT], *, whole: bool = False) -> Sequence[Sheet]:
        """Return the table of times and the device's limits, if known. `whole`: `rows` are of all cells."""
        return columns.floors(headline_rows(rows) if whole else rows)

    def header(self, records: Sequence[RecordT], *, is_run: bool = False) -> Sequence[str]:
        """Return the lines above the tables of a comparison or of one run."""
        variant = [f"variant: {plain_line(records[0].variant.name)}"] if is_run else []
        return *variant, f"workload: {plain_line(records[0].workload)}", *machine_lines(records)

    def remarks(self, rows: Sequence[RowT], baseline: str | None, *, brief: bool = False) -> Sequence[str]:  # noqa: ARG002
        """Return sentences that compare rows; if `brief`, only sentences for the first table."""
        return ()

    def caveats(
        self,
        records: Sequence[RecordT],
        rows: Sequence[RowT],
        *,
        baseline: str | None = None,  # noqa: ARG002
    ) -> Sequence[str]:
        """Return caveats about the numbers, the most important first; fewer if `baseline` is None."""
        return plain_caveats(records, rows)

    def charts(self, comparison: Comparison) -> list[Chart]:
        from benchmarker.report.charts.curves import plain_charts

        return plain_charts(comparison)

    def predictions(self, comparison: Comparison) -> tuple[Sequence[str], Sequence[str]]:  # noqa: ARG002
        """Return sentences on predicted and measured rates, and sentences on the break-even of loading times."""
        return (), ()

    # For callers; not overridden

    @final
    def metric(self, name: str) -> Metric:
        return next(metric for metric in self.metrics if metric.name == name)

    @final
    def ranking(self, names: Collection[str]) -> Metric:
        return self.metric(next((name for name in self.ranked_by if name in names), self.headline))

    @property
    @final
    def cell_class(self) -> type[CellBase]:
        kind: type[CellBase] = get_args(self.record.model_fields["cells"].annotation)[0]
        return kind

    @final
    def cell_text(self, cell: CellBase) -> str:
        """Return the line that is printed before a cell is measured."""
        words = filter(None, (axis.words(getattr(cell, axis.name)) for axis in self.axes))
        return f"{self.cell_opening}{', '.join(words)}{cell.note}"

    @final
    def at_least(self, point: Any, smaller: Any) -> bool:
        """Return True if `point` needs at least the memory of `smaller`: sizes at least as large, other axes equal."""
        return all(
            axis.size_at(point) >= axis.size_at(smaller)
            if axis.is_size
            else getattr(point, axis.name) == getattr(smaller, axis.name)
            for axis in self.axes
        )

    @property
    @final
    def rate_unit(self) -> str:
        return self.metric(self.headline).shown_unit

    @final
    def rate(self, cell: CellBase, sample: SampleBase) -> float | None:
        metric = self.metric(self.headline)
        value = metric.of_repeat(cell, sample)
        return None if value is None else metric.scale * value
