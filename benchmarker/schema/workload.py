"""What a workload declares of itself, for the rooms that know none by name.

A workload is a folder in `workloads/` whose package has a `WORKLOAD`. Its description is light: what needs a library,
or a registry of quantizations or engines, is named as `module:function` and imported when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from benchmarker.core.named_import import imported
from benchmarker.schema.workload_defaults import (
    as_typed,
    no_inputs,
    nothing_lacks,
    nothing_to_look_for,
    nothing_to_prepare,
    nothing_wrong,
    one_process,
    plain_dtype,
    plain_facts,
    plain_parts,
    same_subject,
    unchanged,
)

if TYPE_CHECKING:
    from benchmarker.schema.experiment import ExperimentBase
    from benchmarker.schema.job import Job
    from benchmarker.schema.judging_protocol import Judging
    from benchmarker.schema.record import CellBase, RunRecord, SampleBase


@dataclass(frozen=True)
class Axis:
    """One field of the point of a grid, and of its cell."""

    name: str
    """`seq_len`."""
    heading: str
    """Of its column: `S`."""
    words: Callable[[Any], str]
    """The value in a sentence."""
    is_size: bool = True
    """Whether a larger value never needs less memory. Cells with another value of an axis that is no size are not
    compared: what did not fit says nothing of them."""
    size: Callable[[Any], float] | None = None
    """The size of a point on this axis, where the field of the point is not it."""

    def size_at(self, point: Any) -> float:
        """How large a point is on this axis."""
        return float(getattr(point, self.name)) if self.size is None else self.size(point)


@dataclass(frozen=True)
class Metric:
    """One number of a cell, as tables, verdicts, gate and budget have it. It is declared by one of the three `of_`."""

    name: str
    """Stem of its JSON keys, and its word in --budget: `ttft`."""
    heading: str
    """Of its column: `TTFT ms`."""
    unit: str
    """`s`, `B`, `1/s`, `FLOP/s`; empty for a share or a count."""
    scale: float
    """What is shown is the value times this."""
    better: Literal["higher", "lower"]
    formula: str
    """In words with units, for the documents and --help."""
    of_sample: Callable[[Any, Any], float | None] | None = None
    """From a cell and one of its samples: the median of a process counts."""
    of_latency: Callable[[Any, float], float | None] | None = None
    """From a cell and a latency: a rate. It is taken from the median time, never a mean of rates: half the work fast
    and half slow takes longer than that says."""
    time: Callable[[Any, Any], float | None] = lambda cell, sample: float(sample.latency_s)
    """Of a cell and one of its samples: what `of_latency` is given, where that is not the whole latency."""
    of_cell: Callable[[Any, Any], float | None] | None = None
    """From a record and one of its cells: a fact of the process."""
    combine: Literal["median", "max", "geometric_mean"] = "median"
    """How facts of several processes become one."""
    is_quality: bool = False
    """Whether it says what a variant costs in exactness: it stands in the first table."""

    def of_repeat(self, cell: Any, sample: Any) -> float | None:
        """The value of one repeat; None for a fact of the process."""
        if self.of_sample:
            return self.of_sample(cell, sample)
        time_s = self.time(cell, sample) if self.of_latency else None
        return self.of_latency(cell, time_s) if self.of_latency and time_s else None

    @property
    def shown_unit(self) -> str:
        """What follows the shown number in a sentence: the last word of the heading."""
        return self.heading.split()[-1]


@dataclass(frozen=True)
class Shorthand:
    """A further spelling of an option, or an option for one key of a mapping."""

    flag: str
    """`--compile`."""
    place: str
    """Field of the job that it fills: `variant.runtime`."""
    help: str
    value: str | None = None
    """What it fills in; None for an option that takes a value."""
    key: str | None = None
    """Of a mapping: `--calibration FILE` is `calibration=FILE`."""


def as_it_is(place: str, value: Any) -> Any:  # noqa: ARG001
    """Has one spelling."""
    return value


@dataclass(frozen=True)
class Options:
    """How a workload's fields are spelt on the command line, where that is not `--field-name`."""

    flags: Mapping[str, str] = field(default_factory=dict)
    """By place: `subject.quality.size` is `--quality`."""
    helps: Mapping[str, str] = field(default_factory=dict)
    """By place, where the first sentence of the field's docstring says less than a user needs."""
    repeated: tuple[str, ...] = ()
    """Places of lists whose values are sentences: the option is repeated, instead of one list with commas."""
    shorthands: tuple[Shorthand, ...] = ()
    todays: Callable[[str, Any], Any] = as_it_is
    """The value of a place as it is spelt today: two spellings of one value do not contradict."""
    panels: Mapping[str, str] = field(default_factory=dict)
    """Heading of each group in the order of --help, by the group's place: `subject.quality` is under `Quality`."""
    example: str = ""
    """Arguments that measure something."""


@dataclass(frozen=True)
class Workload:
    """The description of a workload."""

    name: str
    """As a record, a config file and the command line call it."""
    question: str
    """What a user asks, in one sentence."""
    unit: str
    """What one repeat is: `token`, `call`, `step`."""
    experiment: type[ExperimentBase]
    job: type[Job]
    record: type[RunRecord]
    axes: tuple[Axis, ...]
    metrics: tuple[Metric, ...]
    headline: str
    """Name of the metric that a sweep shows as it goes, and by which rows are ranked if `ranked_by` is empty."""
    opener: str
    """`module:function` that opens the Bench: (job, device, progress) -> a context manager."""
    imports: tuple[str, ...] = ()
    """Modules beside the opener's that all of its processes import: a sweep does it for them, once a round."""
    check: Callable[[Any], None] = nothing_wrong
    """Refuses a job that can be seen to fail, without importing the library that would."""
    spelling: str | None = None
    """`module:name` of the Options; None where every option is called after its field."""
    default_variant: Mapping[str, Any] = field(default_factory=dict)
    """What is measured where nothing says which variant."""
    resolve: Callable[[Any], Any] = unchanged
    """A variant with its names as the registries have them. Raises FieldError."""
    check_typed: Callable[[Any, Mapping[str, Any]], None] = nothing_wrong
    """Refuses what was typed beside a job and would do nothing: the job, and values by place. Raises SpecError."""
    over: Callable[[Mapping[str, Any]], dict[str, Any]] = as_typed
    """What was typed, by place, with what it takes the place of in a config."""
    parts: Callable[[Any], dict[str, Any]] = plain_parts
    """All of subject and variant that determines a result, for the key of a cell."""
    facts: Callable[[Any], dict[str, Any]] = plain_facts
    """Fields of a record that are known before anything was done."""
    inputs: Callable[..., dict[str, str]] = no_inputs
    """Fingerprints of the files that a job reads, by what they are: (job, judged=whether those for quality too)."""
    is_same: Callable[[Any, Any], bool] = same_subject
    """Whether two jobs read the same files of the same model, or whatever `look_for` says the commit of."""
    look_for: Callable[[Any], str | None] = nothing_to_look_for
    """Sees before a sweep begins that what the job needs is there, and says its hub commit. Raises BenchmarkerError."""
    lacking: Callable[[Any], str | None] = nothing_lacks
    """What this machine lacks for a job, seen at a glance; None for nothing. A sweep says it before it begins."""
    prepare: Callable[[Any, Any, Any], None] = nothing_to_prepare
    """Makes what a job loads ready on disk: (job, device, progress). Raises BenchmarkerError."""
    processes: Callable[[Any], int] = one_process
    """How many processes of one run may compute on the same GPU: an engine in a process of its own is a second one."""
    cell: Callable[[Any, Any, Sequence[Any]], dict[str, Any] | None] | None = None
    """Fields of a cell that is not measured, from job, point and the records so far; None as long as they are not
    known. The axes by default."""
    point_words: Callable[[Any], str] | None = None
    """A cell in a line. The axes' words by default."""
    point_arguments: Callable[[Any], list[str]] | None = None
    """Options that measure this cell alone. An option for each axis by default."""
    cell_words: Callable[[Any], str] | None = None
    """What is said before a cell is measured. The axes' words by default."""
    ranked_by: tuple[str, ...] = ()
    """Names of the metrics by which rows are ranked: the first that a cell has."""
    cell_opening: str = "cell: "
    """How that begins: a sweep says it more shortly."""
    grid_heading: str = "cells"
    """What stands before the cells of a plan."""
    sample_words: Callable[[Any, Any], str] | None = None
    """What is said after a repeat, from cell and sample, behind its latency. The headline metric by default."""
    repeat_s: Callable[[Any], float] = lambda point: 1.0
    """First guess of the seconds that one repeat takes at a point."""
    dtype: Callable[[Any], Any] = plain_dtype
    """Type in which the device's matmul rate is measured."""
    title: Callable[[Any], str] = lambda job: str(job.workload)
    """What a job is about, for its first line and the folder of its records."""
    summary: str | None = None
    """`module:function` that prints the tables of one run: (record, terminal). A row a cell by default."""
    judging: str | None = None
    """`module:name` of the Judging: what is measured apart from time. None where there is nothing."""
    reasons: str | None = None
    """Where it says what its time is made of, as `module:NAME`; None for the defaults of `explain.reasons`."""
    from_log: str | None = None
    """`module:function` that makes a record of one run in a log of the reference script: see `logs/import_log.py`. None
    where no such log has its numbers."""
    doctor: str | None = None
    """`module:name` of what says which variants run here: see `doctor/variants.py`. None where nobody asks."""
    comparing: str | None = None
    """`module:name` of the Comparing: what its rows have beyond axes and metrics. None where they have nothing."""
    presentation: str | None = None
    """`module:name` of the Presentation: what its tables and charts have beyond them. None where they have nothing."""

    @property
    def options(self) -> Options:
        """How its fields are spelt on the command line."""
        options: Options = imported(self.spelling) if self.spelling else Options()
        return options

    def metric(self, name: str) -> Metric:
        """The metric of this name."""
        return next(metric for metric in self.metrics if metric.name == name)

    def ranking(self, names: Collection[str]) -> Metric:
        """The metric by which rows are ranked that have metrics of these names."""
        return self.metric(next((name for name in self.ranked_by if name in names), self.headline))

    def in_words(self, point: Any) -> str:
        """A cell in a line."""
        if self.point_words:
            return self.point_words(point)
        return ", ".join(axis.words(getattr(point, axis.name)) for axis in self.axes)

    def words_of(self, cell: CellBase) -> str:
        """What is said before a cell is measured."""
        if self.cell_words:
            return self.cell_words(cell)
        return self.cell_opening + ", ".join(axis.words(getattr(cell, axis.name)) for axis in self.axes)

    def cell_fields(self, job: Job, point: Any, records: Sequence[RunRecord]) -> dict[str, Any] | None:
        """Fields of a cell that is not measured; None as long as they are not known."""
        if self.cell:
            return self.cell(job, point, records)
        return {axis.name: getattr(point, axis.name) for axis in self.axes}

    @property
    def cell_class(self) -> type[CellBase]:
        """Of the cells of its records."""
        kind: type[CellBase] = get_args(self.record.model_fields["cells"].annotation)[0]
        return kind

    @property
    def judged_by(self) -> Judging | None:
        """What is measured apart from time."""
        return imported(self.judging) if self.judging else None

    def at_least(self, point: Any, smaller: Any) -> bool:
        """Whether a point needs no less memory than another: equal in every axis but sizes, and as large in these."""
        return all(
            axis.size_at(point) >= axis.size_at(smaller)
            if axis.is_size
            else getattr(point, axis.name) == getattr(smaller, axis.name)
            for axis in self.axes
        )

    @property
    def rate_unit(self) -> str:
        """Of the headline metric, as it is shown."""
        return self.metric(self.headline).shown_unit

    def rate(self, cell: CellBase, sample: SampleBase) -> float | None:
        """The headline metric of one repeat, as it is shown."""
        metric = self.metric(self.headline)
        value = metric.of_repeat(cell, sample)
        return None if value is None else metric.scale * value
