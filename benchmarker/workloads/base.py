"""The interface of a workload: measuring, and reading of its records.

A workload is a subclass of `Workload` in `workloads/NAME/workload.py`, and one line of `schema/registry.py`. The
subclass is imported to read records and to parse a command line: methods import heavy libraries inside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Generic, cast, final, get_args

from typing_extensions import TypeVar

from benchmarker.schema.job import Job
from benchmarker.schema.options import Option
from benchmarker.schema.record import CellBase, RunRecord, SampleBase, VariantFacts
from benchmarker.schema.registry import Axis, Metric

if TYPE_CHECKING:
    from benchmarker.comparison.invariants import Check
    from benchmarker.comparison.rows import CellKey, Circumstance, Limitable, Row
    from benchmarker.core.console import Terminal
    from benchmarker.core.tables import Column, Sheet
    from benchmarker.explain.waterfall import NotExplained, Timed
    from benchmarker.hardware.device import Device
    from benchmarker.report.charts.style import Chart
    from benchmarker.report.compare import Comparison
    from benchmarker.schema.job import ExperimentBase
    from benchmarker.workloads.session import Bench, Judging, Session

JobT = TypeVar("JobT", bound=Job, default=Job)
RecordT = TypeVar("RecordT", bound=RunRecord, default=RunRecord)
RowT = TypeVar("RowT", bound="Row", default="Row")


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
    ranked_by: ClassVar[tuple[str, ...]] = ()  # Names of the metrics that rank rows: the first that a cell has.
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules that every process of a sweep imports; with shared imports a sweep imports them once a round."""
    example: ClassVar[str] = ""  # Arguments of `benchmarker run` that measure something.
    default_variant: ClassVar[Mapping[str, Any]] = {}  # Variant that is measured if none is named.
    cell_opening: ClassVar[str] = "cell: "
    """First words of the line that is printed before a cell is measured; a sweep filters such lines."""
    grid_heading: ClassVar[str] = "cells"  # Heading of the cells of a plan.
    explains_runs: ClassVar[bool] = False
    """Whether a single run prints its explanation too, in place of a row for each cell."""
    must_be_equal: ClassVar[tuple[str, ...]] = ()  # Circumstances that must be equal for the gate too.
    subject_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of a record that describe the measured subject; they are part of a cell's key."""
    baseline_noun: ClassVar[str] = "baseline"  # Kind of variant with which the others are compared: `unquantized form`.
    surroundings_noun: ClassVar[str] = "table"  # Value that a row shares with its reference: `engine`.
    speed_axis: ClassVar[str] = ""
    """Label of the ranking metric on a chart's axis; by default the heading of its column."""

    # Command line and configuration

    def options(self) -> list[Option]:
        from benchmarker.schema.options import field_options

        return field_options(self.job)

    def overlay(self, typed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the command line by place, with the config's values that they replace."""
        return dict(typed)

    def resolve(self, variant: Any, subject: Any = None) -> Any:  # noqa: ARG002
        """Return the variant with names as the registries have them, and what the subject decides. Raises FieldError.

        Args:
            subject: Of the job; None while a config is read.
        """
        return variant

    def check(self, job: JobT, typed: Mapping[str, Any]) -> None:
        """Refuse a job that would fail, and typed options that would have no effect. Raises BenchmarkerError."""

    def point_text(self, point: Any) -> str:
        return ", ".join(filter(None, (axis.words(getattr(point, axis.name)) for axis in self.axes)))

    def point_arguments(self, point: Any) -> list[str]:
        """Return options that measure this cell alone."""
        from benchmarker.schema.options import flags_of

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
        """Return the first fields of a record, before the run begins."""
        return {"variant": VariantFacts(name=job.variant.name, options=job.variant.model_dump(exclude={"name"}))}

    def inputs(self, job: JobT, *, judged: bool) -> dict[str, str]:  # noqa: ARG002
        """Return the fingerprint of each file that a job reads; with `judged`, also of the files for quality alone."""
        return {}

    def look_for(self, job: JobT) -> str | None:  # noqa: ARG002
        """Check before a sweep begins that the job's files exist; return their hub commit. Raises BenchmarkerError."""
        return None

    def lacking(self, job: JobT) -> str | None:  # noqa: ARG002
        """Return the missing libraries of a job, with the remedy. A sweep prints it before it begins."""
        return None

    def prepare(self, job: JobT, device: Device, progress: Terminal) -> None:
        """Download or build the files that a job loads. Raises BenchmarkerError."""

    def cell_fields(self, job: JobT, point: Any, records: Sequence[RecordT]) -> dict[str, Any] | None:  # noqa: ARG002
        """Return fields of a cell that is not measured; None as long as the records so far do not contain them."""
        return {axis.name: getattr(point, axis.name) for axis in self.axes}

    def sample_text(self, cell: Any, sample: Any) -> str:
        """Return the numbers that are printed after a repeat, behind its latency."""
        from benchmarker.core.formatting import significant

        return f"{significant(self.rate(cell, sample))} {self.rate_unit}"

    def judging(self) -> Judging[JobT, RecordT] | None:
        """Return the measurements apart from time."""
        return None

    # Comparing records

    def cell_keys(self, record: RecordT) -> list[CellKey]:
        from benchmarker.comparison.rows import CellKey

        return [
            CellKey(tuple((axis.name, getattr(cell, axis.name)) for axis in self.axes), record.workload)
            for cell in record.cells
        ]

    def circumstances(self, records: Sequence[RecordT]) -> Mapping[str, Circumstance]:  # noqa: ARG002
        """Return the values that must be equal in all records beside device, driver and versions, by name."""
        return {}

    def row(self, fields: dict[str, Any], records: Sequence[RecordT], good: Sequence[Any]) -> RowT:  # noqa: ARG002
        """Return the row with the values `fields` of every workload; `good` has the records that measured the cell."""
        from benchmarker.comparison.rows import Row

        return cast("RowT", Row(**fields))

    def with_baseline(self, rows: Sequence[RowT], baseline: str | None) -> tuple[RowT, ...]:  # noqa: ARG002
        """Return the rows with values that depend on the baseline's row."""
        return tuple(rows)

    def limitable(self) -> Mapping[str, Limitable]:
        """Return the quantities that a budget can limit beside memory and the metrics, by name."""
        return {}

    def checks(self, record: RecordT) -> Iterable[Check]:  # noqa: ARG002
        """Return checks of `verify` beyond those of every record."""
        return ()

    # Explaining

    def timed(self, name: str, records: Sequence[RecordT]) -> Timed | NotExplained:
        """Return the profiled unit of a variant with its time without the profiler."""
        from benchmarker.explain.waterfall import timed_profile

        return timed_profile(name, records)

    # Showing

    def cell_columns(self, rows: Sequence[Any], *, always: bool = False) -> Sequence[Column[Any]]:
        """Return the columns of the axes that vary; with `always`, of all axes."""
        from benchmarker.report.columns import axis_columns

        return axis_columns(rows, always=always)

    def timing_columns(self, rows: Sequence[RowT]) -> Sequence[Column[Any]]:
        """Return the columns of the timed metrics."""
        from benchmarker.report.columns import metric_columns

        return metric_columns(rows)

    def cost_columns(self, rows: Sequence[RowT], *, whole: bool = False) -> Sequence[Column[Any]]:
        """Return the columns of memory and other costs; fewer for the whole table of every cell."""
        from benchmarker.report.columns import memory, plain_costs

        return memory(rows) if whole else plain_costs(rows)

    def brief_columns(self, rows: Sequence[RowT]) -> tuple[Sequence[Column[Any]], Sequence[Column[Any]]]:
        """Return two groups of the first table's columns: those left of the ranking metric, and those of quality."""
        from benchmarker.report.columns import latency_columns, quality_columns

        return latency_columns(rows), quality_columns(rows)

    def command(self, records: Sequence[RecordT]) -> str:  # noqa: ARG002
        """Return the command that runs a variant for use; empty if there is none."""
        return ""

    def detail_sheets(self, rows: Sequence[RowT]) -> Sequence[Sheet]:  # noqa: ARG002
        """Return further tables of the headline's cell."""
        return ()

    def limit_sheet(self, rows: Sequence[RowT], *, whole: bool = False) -> Sheet | None:
        """Return the rows beside the device's limits, if these are known; `whole` chooses from all cells."""
        from benchmarker.comparison.rows import headline_rows
        from benchmarker.report.columns import floors

        return floors(headline_rows(rows) if whole else rows)

    def header(self, records: Sequence[RecordT], *, is_run: bool = False) -> Sequence[str]:
        """Return the lines above the tables of a comparison or of one run."""
        from benchmarker.core.tables import plain_line
        from benchmarker.report.caveats import plain_header

        variant = [f"variant: {plain_line(records[0].variant.name)}"] if is_run else []
        return *variant, *plain_header(records)

    def remarks(self, rows: Sequence[RowT], baseline: str | None, *, brief: bool = False) -> Sequence[str]:  # noqa: ARG002
        """Return sentences on all rows together; with `brief`, those for the first table."""
        return ()

    def caveats(
        self,
        records: Sequence[RecordT],
        rows: Sequence[RowT],
        *,
        baseline: str | None = None,  # noqa: ARG002
    ) -> Sequence[str]:
        """Return the facts needed before believing a number, the most important first; fewer without `baseline`."""
        from benchmarker.report.caveats import plain_caveats

        return plain_caveats(records, rows)

    def charts(self, comparison: Comparison) -> list[Chart]:
        from benchmarker.report.charts.curves import plain_charts

        return plain_charts(comparison)

    def predictions(self, comparison: Comparison) -> tuple[Sequence[str], Sequence[str]]:  # noqa: ARG002
        """Return sentences on predicted and measured limits, and on when a variant has paid for its start."""
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
        """Whether a point needs no less memory than another: equal in every axis but sizes, and as large in these."""
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
