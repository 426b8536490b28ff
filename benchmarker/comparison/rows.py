"""Table rows for any workload. A row is one variant in one cell."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from benchmarker.core.formatting import decimal, with_spread
from benchmarker.core.stats import MIN_ROUNDS, Estimate, Ratio
from benchmarker.core.tables import plain_line
from benchmarker.schema.record import CellBase, Demand, Flag, Limits, Moment, RunRecord
from benchmarker.schema.registry import Metric, workload_of

if TYPE_CHECKING:
    from benchmarker.comparison.speed_up import SpeedUp
    from benchmarker.workloads.base import Workload


RowT = TypeVar("RowT", bound="Row")
KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, order=True)
class CellKey:
    """Values of the axes that identify a cell, ordered as in the tables. Every axis is an attribute: `key.seq_len`."""

    pairs: tuple[tuple[str, Any], ...]
    workload: str = field(compare=False)

    def __getitem__(self, name: str) -> Any:
        return dict(self.pairs)[name]

    def __getattr__(self, name: str) -> Any:
        # `copy` looks up methods of the new object before `pairs` is set.
        try:
            return dict(self.__dict__.get("pairs", ()))[name]
        except KeyError:
            raise AttributeError(name) from None

    def without(self, *names: str) -> CellKey:
        """Return the key without these axes; it is equal for cells that differ only in them."""
        return replace(self, pairs=tuple(pair for pair in self.pairs if pair[0] not in names))

    @property
    def words(self) -> str:
        axes = {axis.name: axis for axis in workload_of(self.workload).axes}
        return ", ".join(filter(None, (axes[name].words(value) for name, value in self.pairs)))

    @property
    def size(self) -> float:
        """Product of the values of all size axes, such as batch size times prompt length."""
        sizes = [self[axis.name] for axis in workload_of(self.workload).axes if axis.is_size]
        return math.prod(max(1.0, float(size)) for size in sizes if isinstance(size, int | float))

    @property
    def context(self) -> tuple[Any, ...]:
        """Values on which a profile depends. Cells with equal values share a profile and its explanation."""
        return tuple(value for _, value in self.pairs)


class Failure(NamedTuple):
    """A failed process of a row. Other processes of the row were measured."""

    round: int
    status: str
    reason: str | None
    is_repeated: bool  # True if another process measured the cell in this round.


@dataclass(frozen=True)
class Row:
    """One variant in one cell, over all its processes. None means unknown."""

    workload: str
    variant: str
    form: dict[str, str]
    family: str  # Variants of one family share a colour if there are more variants than colours.
    device: str
    cell: CellKey | None
    status: str
    """`ok`, the status of a failed cell such as `oom_gpu`, `failed` for a failed run, or `not measured`."""
    reason: str | None = None
    latency: Estimate | None = None
    latency_by_round: dict[Moment, float] = field(default_factory=dict)
    time_by_round: dict[Moment, float] = field(default_factory=dict)
    """Ranking metric by round, as a time in seconds: a rate is inverted, so that less is faster."""
    metrics: dict[str, Estimate] = field(default_factory=dict)
    values_by_round: dict[str, dict[Moment, float]] = field(default_factory=dict)  # Values of each metric by round.
    facts: dict[str, float] = field(default_factory=dict)  # Metrics that a process has once, without repeats, by name.
    speed_up: SpeedUp | None = None
    """Speed-up relative to the row's reference. None if the row is its own reference or has no reference."""
    against_named: SpeedUp | None = None
    """Speed-up relative to `Results.named`, the single variant with which a table of several engines compares."""
    sweep: str = ""  # Name of the row's sweep in a comparison that keeps sweeps apart; the variant's name ends with it.
    change: SpeedUp | None = None  # Ratio to the same variant in the first sweep, for rows of later sweeps.
    call: SpeedUp | None = None  # Ratio of the latencies of a whole call, relative to the baseline of the comparison.
    mixes_prefill: bool = False  # True if the engine prefills some sequences of the batch while it decodes others.
    is_ranked_by_call: bool = False
    """True in a cell of several engines, of which at least one mixes prefill: rows are ranked by the whole call."""
    is_baseline: bool = False
    is_reference: bool = False
    """True for a row that is its own reference, such as the unquantized variant of an engine."""
    bound_by: str | None = None
    peak_memory_bytes: int | None = None
    """Largest peak over all processes: live tensors on a GPU, growth of the resident memory on a CPU."""
    rounds: int = 0
    processes: int = 0  # Number of processes; more than the rounds if single runs were repeated.
    runs: int = 0
    clock_mhz: float | None = None
    demand: Demand | None = None
    limits: Limits | None = None  # Device limits measured by the first process. `floor_s` uses those of each process.
    floor_s: float | None = None
    mark: str = ""
    surroundings: str | None = None
    """Value that a row shares with its reference, such as the engine."""
    caption: str = ""  # Sentence below the table, for example on a column of energies that only some rows have.
    has_random_weights: bool = False
    flags: tuple[Flag, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.variant}*" if self.mark else self.variant

    @property
    def name_in_sweep(self) -> str:
        return self.variant.removesuffix(f" ({self.sweep})")

    @property
    def is_plain(self) -> bool:
        """True for an unquantized row, which can be the reference of other rows."""
        return self.is_baseline

    @property
    def loss(self) -> float | None:
        """Loss of quality, such as KL divergence; None if not measured, 0 for workloads without such a measure."""
        return 0.0

    @property
    def variant_text(self) -> str:
        return plain_line(self.variant)

    @property
    def quality_text(self) -> str:
        """Quality metrics of the row, such as `error 2.1 ppm`; empty if it has none."""
        facts = [metric for metric in self.described.metrics if metric.is_quality and metric.name in self.facts]
        return ", ".join(
            f"{metric.name} {decimal(self.facts[metric.name] * metric.scale, digits=2)} {metric.shown_unit}"
            for metric in facts
        )

    def values(self) -> dict[str, Any]:
        """Return the row for JSON: settings, cell, and each metric with its interval in base units."""
        return {
            "workload": self.workload,
            "variant": self.variant,
            **self.form,
            "device": self.device,
            **{axis.name: self.cell[axis.name] if self.cell else None for axis in self.described.axes},
            "status": self.status,
            **metric_numbers(self, self.described.metrics),
            "peak_memory_bytes": self.peak_memory_bytes,
            "floor_s": self.floor_s,
            **ratio_numbers(self),
            "bound_by": self.bound_by,
            "rounds": self.rounds,
            "runs": self.runs,
            "flags": list(self.flags),
        }

    @property
    def ratio(self) -> Ratio | None:
        if self.is_reference:
            return Ratio(1.0, rounds=self.rounds) if self.pace else None
        return self.speed_up.ratio if self.speed_up else None

    @property
    def described(self) -> Workload:
        return workload_of(self.workload)

    @property
    def rate(self) -> Estimate | None:
        return self.metrics.get(self.described.headline)

    @property
    def ranking(self) -> Metric:
        if self.is_ranked_by_call:
            return self.described.metric(self.described.headline)
        return self.described.ranking(self.metrics)

    @property
    def pace(self) -> Estimate | None:
        return self.metrics.get(self.ranking.name)

    @property
    def speed(self) -> float:
        if self.pace is None:
            return 0.0
        return self.pace.value if self.ranking.better == "higher" else 1 / self.pace.value

    @property
    def is_withheld(self) -> bool:
        """True if tables, charts and sentences print no number, because the interval is too wide."""
        return is_wide(self.pace)

    def spread_text(self, measured: Estimate | None, *, scale: float = 1.0) -> str:
        """Return `36.15 [36.02, 36.28]`, or for a wide interval `outlier round 3` or `wide [20.10, 44.72]`."""
        text = with_spread(measured, scale=scale)
        return number_text(measured, text, self.outlier) if measured else text

    @property
    def pace_spread(self) -> str:
        """`spread_text` of the ranking metric, in the unit of its heading."""
        return self.spread_text(self.pace, scale=self.ranking.scale)

    @property
    def outlier(self) -> int | None:
        """Outlier round of a row with a wide interval, counted from 1; None for other rows or without outlier."""
        return outlier_round(self.time_by_round) if self.is_withheld else None


WIDEST = 2.0  # Largest quotient of an interval's ends at which a value is shown as a number.
DIXON = (0.970, 0.829, 0.710, 0.625, 0.568, 0.526, 0.493, 0.466)
"""Critical values of Dixon's Q test for 3 to 10 rounds, two-sided at 95 % (Rorabacher, Anal. Chem. 63, 1991)."""


def is_wide(measured: Estimate | Ratio | None) -> bool:
    if measured is None or measured.low is None or measured.high is None:
        return False
    return measured.high > WIDEST * measured.low


def shown_value(measured: Estimate | Ratio | None, *, scale: float = 1.0) -> float | None:
    """Return the number that a table shows; None if its interval is too wide for a number."""
    return None if measured is None or is_wide(measured) else measured.value * scale


def outlier_round(values: Mapping[Moment, float]) -> int | None:
    """Return the round of the outlier among positive values, counted from 1; None if Dixon's Q test finds no outlier.

    Q is the gap between an extreme logarithm and its neighbour, divided by the range of all logarithms.
    """
    ordered = sorted((math.log(value), moment) for moment, value in values.items())
    if len(ordered) < MIN_ROUNDS:
        return None
    spread = ordered[-1][0] - ordered[0][0]
    gaps = ((ordered[1][0] - ordered[0][0], ordered[0]), (ordered[-1][0] - ordered[-2][0], ordered[-1]))
    gap, (_, moment) = max(gaps)
    return moment[1] + 1 if gap > DIXON[min(len(ordered), 10) - MIN_ROUNDS] * spread else None


def number_text(measured: Estimate | Ratio, shown: str, outlier: int | None) -> str:
    """Return `shown`, such as `1.87x [1.17, 3.00]`, or for a wide interval `outlier round 3` or `wide [1.17, 3.00]`."""
    if not is_wide(measured):
        return shown
    return f"outlier round {outlier}" if outlier else f"wide {shown.partition(' ')[2]}"


@dataclass(frozen=True)
class Results:
    rows: tuple[Row, ...]
    records: tuple[RunRecord, ...]
    baseline: str | None = None
    differences: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    complied: tuple[str, ...] = ()  # Lines on the results of `benchmarker comply`.
    members: dict[str, tuple[RunRecord, ...]] = field(default_factory=dict)
    named: str | None = None
    """Variant to which every row of a table with several engines is compared: the baseline that the user named, or the
    fastest unquantized variant of the first table's cell."""
    has_named_baseline: bool = False
    resume: str = ""  # Command that adds rounds to the sweep of all records; empty for records of no or several sweeps.
    sides: Mapping[str, Results] = field(default_factory=dict)
    """Results of each sweep by name, if sweeps are kept apart; else empty. `rows` then holds the rows of all sweeps."""
    changed: tuple[str, ...] = ()  # Differences between the sweeps that are kept apart.
    circumstances: Mapping[str, object] = field(default_factory=dict)
    """Device and settings of each variant. Rounds are paired only between variants with equal circumstances."""

    @property
    def workload(self) -> str:
        return self.records[0].workload

    @property
    def measured_cells(self) -> tuple[CellKey, ...]:
        return tuple(dict.fromkeys(row.cell for row in self.rows if row.cell and row.pace))


def headline_rows(rows: Sequence[RowT]) -> list[RowT]:
    cell = headline(rows)
    return [row for row in rows if row.cell == cell]


def headline(rows: Sequence[Row]) -> CellKey | None:
    """Return the cell of the first table: the largest among the cells that most variants could run."""
    able: dict[CellKey, int] = {}
    for row in rows:
        if row.cell:
            able[row.cell] = able.get(row.cell, 0) + (row.status == "ok")
    return max(able, key=lambda key: (able[key], key.size, key), default=None)


def cell_words(key: CellKey | None) -> str:
    return "every cell" if key is None else key.words


def listed(names: Iterable[str], conjunction: str = "and") -> str:
    *others, last = dict.fromkeys(map(plain_line, names))
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def grouped(pairs: Iterable[tuple[KeyT, ValueT]]) -> dict[KeyT, list[ValueT]]:
    groups: dict[KeyT, list[ValueT]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


Circumstance = Callable[[Any], str | None]
KEY_ENDINGS = {"s": "_s", "B": "_bytes", "1/s": "_per_s", "FLOP/s": "_flop_per_s"}
# Units of a budget, by kind. A size and a time need a unit: 6 alone could be bytes or GiB.
SIZES = {"b": 1.0, "mib": 2.0**20, "gib": 2.0**30, "mb": 1e6, "gb": 1e9}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
UNITLESS = {"": 1.0}


@dataclass(frozen=True)
class Limitable:
    value_of: Callable[[Any], float | Estimate | None]
    units: Mapping[str, float]
    """Factors to the base unit by unit in lower case: `{"ms": 0.001}`. The key "" is for a number without unit."""
    form: Callable[[float], str]
    how: str
    decides: str = "more rounds"  # Measurement that narrows the interval of a value close to a limit.
    meaning: str = ""  # Sentence that limits the interpretation; empty if there is none.


def ratio_numbers(row: Row) -> dict[str, float | str | None]:
    """Return the row's speed-up and its ratio of whole calls, each with its interval; 1 for the reference itself."""
    own_call = Ratio(1.0, rounds=row.rounds) if row.is_baseline and row.latency else None
    verdict, reference = (row.speed_up.verdict, row.speed_up.reference) if row.speed_up else (None, None)
    return {
        **with_ends("ratio", row.ratio),
        "verdict": "baseline" if row.is_reference else verdict,
        "reference": row.variant if row.is_reference else reference,
        **with_ends("call_ratio", row.call.ratio if row.call else own_call),
    }


def with_ends(key: str, measured: Estimate | Ratio | None) -> dict[str, float | None]:
    """Return a value and its interval for JSON: `{"ratio": 1.5, "ratio_low": 1.4, "ratio_high": 1.6}`."""
    ends = {"": "value", "_low": "low", "_high": "high"}
    return {f"{key}{ending}": getattr(measured, name, None) for ending, name in ends.items()}


def metric_numbers(row: Row, metrics: Iterable[Metric]) -> dict[str, float | None]:
    numbers: dict[str, float | None] = {}
    for metric in metrics:
        key = re.sub(r"\W+", "_", metric.name) + KEY_ENDINGS.get(metric.unit, "")
        is_fact = metric.of_cell is not None
        numbers |= {key: row.facts.get(metric.name)} if is_fact else with_ends(key, row.metrics.get(metric.name))
    return numbers


def keys_of(record: RunRecord) -> list[CellKey]:
    return workload_of(record.workload).cell_keys(record)


def cell_of(record: RunRecord, key: CellKey | None) -> CellBase | None:
    return next((cell for cell, cell_key in zip(record.cells, keys_of(record), strict=True) if cell_key == key), None)
