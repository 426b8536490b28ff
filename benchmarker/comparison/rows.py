"""What a report shows: one row per variant and cell, whatever the workload."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from benchmarker.core.formatting import decimal
from benchmarker.core.stats import Ratio
from benchmarker.core.tables import escaped
from benchmarker.schema.registry import workload_of

if TYPE_CHECKING:
    from benchmarker.comparison.speed_up import SpeedUp
    from benchmarker.core.stats import Estimate, Ratio
    from benchmarker.schema.metric import Metric
    from benchmarker.schema.record import Demand, Flag, Limits, Moment, RunRecord
    from benchmarker.workloads.base import Workload


RowT = TypeVar("RowT", bound="Row")
Context = tuple[Any, ...]
"""Values of the axes on which a profiled repeat depends."""


@dataclass(frozen=True, order=True)
class CellKey:
    """Which cell of the grid, in the order of the tables. A value is an attribute too: `key.seq_len`."""

    pairs: tuple[tuple[str, Any], ...]
    """Name and value of each axis."""
    workload: str = field(compare=False)

    def __getitem__(self, name: str) -> Any:
        return dict(self.pairs)[name]

    def __getattr__(self, name: str) -> Any:
        # A copy is looked up before it has its pairs.
        pairs = dict(self.__dict__.get("pairs", ()))
        if name not in pairs:
            raise AttributeError(name)
        return pairs[name]

    def without(self, *names: str) -> CellKey:
        """The key with these axes left out: what cells have in common that differ on them alone."""
        return replace(self, pairs=tuple(pair for pair in self.pairs if pair[0] not in names))

    @property
    def words(self) -> str:
        """The cell in a sentence."""
        values = dict(self.pairs)
        return ", ".join(
            axis.words(values[axis.name]) for axis in workload_of(self.workload).axes if axis.name in values
        )

    @property
    def short_words(self) -> str:
        """The cell beside a chart."""
        return ", ".join(str(value) for _, value in self.pairs)

    @property
    def place(self) -> str:
        """The cell in a message about a record."""
        return self.words

    @property
    def inputs_words(self) -> str:
        """What went in, in a message about its hash."""
        return f"input at {self.words} (inputs_sha256)"

    @property
    def size(self) -> float:
        """How large the cell is: the product of the axes that are sizes."""
        values = dict(self.pairs)
        sizes = [values[axis.name] for axis in workload_of(self.workload).axes if axis.is_size]
        return math.prod(max(1.0, float(size)) for size in sizes if isinstance(size, int | float))

    @property
    def context(self) -> Context:
        """What a profiled repeat depends on: cells that share it share its reason."""
        return tuple(value for _, value in self.pairs)


class Failure(NamedTuple):
    """One process that gave no number although others of the row did."""

    round: int
    status: str
    reason: str | None
    is_repeated: bool
    """Whether another process of the same round did give one."""


@dataclass(frozen=True)
class Row:
    """One variant in one cell, over all its processes. None is not known."""

    workload: str
    variant: str
    form: dict[str, str]
    """What makes the variant what it is beside its name, by field."""
    family: str
    """Variants of one family share a colour where there are too many for one each."""
    device: str
    cell: CellKey | None
    """None where the run failed before any cell was known."""
    status: str
    """Of the cell: ok, or why there is no number. `failed` and `not measured` are the run's."""
    reason: str | None = None
    latency: Estimate | None = None
    """Seconds."""
    latency_by_round: dict[Moment, float] = field(default_factory=dict)
    pace_by_round: dict[Moment, float] = field(default_factory=dict)
    """One number a process, of the metric that ranks: a time, or what a rate is the inverse of. Less is faster."""
    metrics: dict[str, Estimate] = field(default_factory=dict)
    """By name: those that are declared of a repeat, as far as they are known."""
    facts: dict[str, float] = field(default_factory=dict)
    """By name: those that are declared of a process."""
    speed_up: SpeedUp | None = None
    """Speed-up relative to the row's reference. None for the reference itself and without a reference."""
    against_named: SpeedUp | None = None
    """Speed-up relative to the one variant that a table with several engines names (`Results.named`)."""
    call: SpeedUp | None = None
    """Ratio of the latencies of a whole call, relative to the baseline of the comparison."""
    is_baseline: bool = False
    """True for the baseline of the comparison."""
    is_reference: bool = False
    """True for a row that is its own reference, such as the unquantized variant of an engine."""
    bound_by: str | None = None
    peak_memory_bytes: int | None = None
    """Live tensors on a GPU, growth of the resident memory on CPU; the largest of all processes."""
    rounds: int = 0
    processes: int = 0
    """More than the rounds where single runs were repeated."""
    runs: int = 0
    """Timed repeats in all."""
    clock_mhz: float | None = None
    """Median clock of the compute units while timing, where a driver said."""
    demand: Demand | None = None
    limits: Limits | None = None
    """As the first of the processes measured them; the floor is from each one's own."""
    floor_s: float | None = None
    """The least time that a call can take on this device."""
    mark: str = ""
    """What sets its numbers apart from others, such as kernels that no other program has: its name has an asterisk."""
    flags: tuple[Flag, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def label(self) -> str:
        """The variant's name, with an asterisk where something sets it apart."""
        return f"{self.variant}*" if self.mark else self.variant

    @property
    def is_plain(self) -> bool:
        """Whether other rows are compared with rows of this kind, such as unquantized ones."""
        return self.is_baseline

    @property
    def surroundings(self) -> str | None:
        """Value that the row shares with the row that it is compared with, such as the engine."""
        return None

    @property
    def loss(self) -> float | None:
        """Cost beside time and memory, less is better; None if not measured."""
        return 0.0

    @property
    def has_random_weights(self) -> bool:
        """Whether only its time and memory are real."""
        return False

    @property
    def variant_text(self) -> str:
        """Variant with its form, in a sentence."""
        return escaped(self.variant)

    @property
    def quality_text(self) -> str:
        """Facts that show how exact the variant is, as in `error 2.1 ppm`; empty if there are none."""
        facts = [metric for metric in self.described.metrics if metric.is_quality and metric.name in self.facts]
        return ", ".join(
            f"{metric.name} {decimal(self.facts[metric.name] * metric.scale, digits=2)} {metric.shown_unit}"
            for metric in facts
        )

    def values(self) -> dict[str, Any]:
        """Return plain values for a program: base units, None for unknown."""
        from benchmarker.comparison.comparing import plain_row

        return plain_row(self)

    @property
    def ratio(self) -> Ratio | None:
        """The speed-up's ratio; 1 for a reference."""
        if self.is_reference:
            return Ratio(1.0, rounds=self.rounds) if self.pace else None
        return self.speed_up.ratio if self.speed_up else None

    @property
    def verdict(self) -> str | None:
        """The speed-up's verdict; `baseline` for a reference."""
        if self.is_reference:
            return "baseline"
        return self.speed_up.verdict if self.speed_up else None

    @property
    def described(self) -> Workload:
        """The row's workload."""
        return workload_of(self.workload)

    @property
    def headline(self) -> Metric:
        """The metric by which rows are ranked."""
        return self.described.metric(self.described.headline)

    @property
    def rate(self) -> Estimate | None:
        """The headline metric of this row."""
        return self.metrics.get(self.described.headline)

    @property
    def ranking(self) -> Metric:
        """The metric by which rows of this cell are ranked."""
        return self.described.ranking(self.metrics)

    @property
    def pace(self) -> Estimate | None:
        """That metric of this row."""
        return self.metrics.get(self.ranking.name)

    @property
    def speed(self) -> float:
        """What rows are ranked by: more is faster. 0 where it was not measured."""
        if self.pace is None:
            return 0.0
        return self.pace.value if self.ranking.better == "higher" else 1 / self.pace.value


def with_bound(row: RowT, bounds: Mapping[tuple[str, Context], str]) -> RowT:
    """The row with what it is bound by, where a repeat of its variant over the same context was profiled."""
    if row.cell is None or row.status != "ok":
        return row
    return replace(row, bound_by=bounds.get((row.variant, row.cell.context)))


@dataclass(frozen=True)
class Results:
    """Rows with the records that they come from: all that a report shows."""

    rows: tuple[Row, ...]
    """Cell by cell, the variants in one order in each."""
    records: tuple[RunRecord, ...]
    baseline: str | None = None
    """Name of the variant that speed-ups are against; None where there are none."""
    differences: tuple[str, ...] = ()
    """What differs between records that --force compared all the same."""
    problems: tuple[str, ...] = ()
    """Files that were left out."""
    reasons: tuple[str, ...] = ()
    """Why each variant is as fast as it is, as markdown; empty where nothing was profiled."""
    members: dict[str, tuple[RunRecord, ...]] = field(default_factory=dict)
    """The records of each variant, under the name that the rows give it."""
    named: str | None = None
    """Variant to which every row of a table with several engines is compared: the baseline that the user named, or the
    fastest unquantized variant of the first table's cell."""
    has_named_baseline: bool = False
    """True if the user named the baseline."""
    circumstances: Mapping[str, object] = field(default_factory=dict)
    """What each variant was measured in: rounds pair only where they are equal."""

    @property
    def workload(self) -> str:
        """What all of the records measured."""
        return self.records[0].workload

    @property
    def measured_cells(self) -> tuple[CellKey, ...]:
        """The cells in which a variant has a number, in the order of the rows."""
        return tuple(dict.fromkeys(row.cell for row in self.rows if row.cell and row.pace))


def headline_rows(rows: Sequence[RowT]) -> list[RowT]:
    """Those that the first table shows."""
    cell = headline(rows)
    return [row for row in rows if row.cell == cell]


def headline(rows: Sequence[Row]) -> CellKey | None:
    """The cell that the first table shows: the largest of those that most variants could do."""
    able: dict[CellKey, int] = {}
    for row in rows:
        if row.cell:
            able[row.cell] = able.get(row.cell, 0) + (row.status == "ok")
    return max(able, key=lambda key: (able[key], key.size, key), default=None)


def cell_words(key: CellKey | None) -> str:
    """`prompt 26, 100 new tokens, batch 1`."""
    return "every cell" if key is None else key.words


def listed(names: Iterable[str]) -> str:
    """`fp16`, `fp16 and int8`, `fp16, int8 and bnb4`; each name once, escaped for a table's page."""
    *others, last = dict.fromkeys(map(escaped, names))
    return f"{', '.join(others)} and {last}" if others else last
