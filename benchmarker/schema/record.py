"""Record of one process: one self-describing JSON file.

Values are in base units (seconds, bytes, counts). Raw samples are kept, so that every number in a table can be computed
from the file. `null` means not measured. A workload's own record, cell and sample are subclasses in
`workloads/NAME/record.py`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field

from benchmarker.core.errors import ErrorKind
from benchmarker.schema.base import Count, Joules, Number, Plain, Positive, Rate, Scalar, Seconds, Spent, Whole
from benchmarker.schema.environment import Conditions, Environment, HostLoad
from benchmarker.schema.profile import Profile
from benchmarker.schema.status import CellStatus

SCHEMA_VERSION: Literal[2] = 2
"""Version of the format."""

Flag = Literal[
    "unstable_warmup",
    "late_warmup",
    "nondeterministic_tokens",
    "power_limited",
    "throttling_unknown",
    "shared_device",
    "shared_host",
    "disturbed",
    "imported",
    "step_differs",
]
"""Warnings of a cell; the report has a sentence for each."""


class EnergyWindow(Plain):
    """Generations back to back for at least ten seconds."""

    seconds: Seconds
    energy_j: Joules
    """Energy of the whole board by its driver's counter, idle power included, J."""
    generations: Positive
    temperature_before_c: Number | None = None
    temperature_after_c: Number | None = None


class Energy(Plain):
    """Energy of a cell's generations, counted apart from the timed repeats."""

    idle_power_w: Number | None = None
    """Power of the board with the model loaded and idle, W."""
    generation: Annotated[tuple[EnergyWindow, ...], Field(min_length=1)]
    """Windows at the cell's shape."""
    prefill: tuple[EnergyWindow, ...] = ()
    """Windows with one new token. Empty if the cell has one new token."""


class Limits(Plain):
    """Limits of the device, measured in this process before a model was loaded."""

    read_bytes_per_s: Rate
    """Bandwidth of summing an array, B/s."""
    copy_bytes_per_s: Rate
    """Bandwidth of copying one half of the array to the other, bytes read plus written, B/s."""
    array_bytes: Whole
    """Size of the array, bytes: several times the cache, 2 GiB on a GPU."""
    matmul_flops_per_s: Rate
    """Rate of a product of square matrices, FLOP/s, with 2 * n^3 operations. On a CPU the fastest of several sizes, in
    this type and in float32."""
    matmul_dtype: str
    """Type of these matrices."""
    matmul_size: Whole
    """Size n of these matrices."""
    cache_bytes: Whole | None = None
    """Size of the last cache before memory, bytes. None if unknown."""
    launch_s: Number | None = None
    """Host time of one launch of an empty kernel in a series, without torch's operators, s. None on CPU."""
    operator_s: Number | None = None
    """Host time of torch's smallest operator, with Python and the dispatcher, s. None on CPU."""
    graph_kernel_s: Number | None = None
    """Time of one empty kernel in a replayed graph, s. None on CPU."""

    @property
    def bytes_per_s(self) -> float:
        """Higher of the two bandwidths, B/s: decoding reads much more than it writes."""
        return max(self.read_bytes_per_s, self.copy_bytes_per_s)


class Demand(Plain):
    """Least work of one call, from its shapes and tensors."""

    flops: Count | None = None
    """Number of floating-point operations. None in older records."""
    bytes: Count | None = None
    """Least number of bytes read from and written to memory. None in older records."""


class SampleBase(Plain):
    """One timed repeat."""

    latency_s: Seconds
    """Time of one call until its last result, s, with the device drained at both ends."""
    calls: Positive = 1
    """Number of calls timed together if one is too short for the clock; `latency_s` is their mean."""
    parts_s: dict[str, Spent] = Field(default_factory=dict)
    """Times of named parts of one call, s."""
    peak_allocated_bytes: Whole | None = None
    """Peak bytes of live tensors during this repeat. None on CPU."""


class Memory(Plain):
    """Peak memory over the timed repeats of one cell."""

    peak_allocated_bytes: Whole | None = None
    """Peak bytes of live tensors by torch's allocator. None on CPU."""
    peak_reserved_bytes: Whole | None = None
    """Peak bytes that the allocator held from the driver. None on CPU."""
    device_used_bytes: Whole | None = None
    """Growth of the whole device's used memory since the start of the process, bytes, with context and libraries."""
    peak_resident_bytes: Whole | None = None
    """Peak resident memory of the process, bytes, Python and libraries included. On CPU only."""
    resident_growth_bytes: Whole | None = None
    """Growth of resident memory from before loading the model to the peak in a timed repeat, bytes: the memory needed
    on a CPU. None on a GPU and in older records."""
    graph_pool_bytes: Whole | None = None
    """Memory of the captured graph's own tensors, bytes; the allocator counts it as free between replays. None without
    a graph."""
    per_gpu_bytes: tuple[Whole, ...] = ()
    """Peak of each of several GPUs that share the work, bytes. Empty for one. `peak_allocated_bytes` is the largest."""


class Checked(Plain):
    """Check of one call's result before timing."""

    against: str
    """Reference, such as `the same in float64`."""
    error: Spent
    """Largest difference, relative to the largest value of the reference."""
    tolerance: Spent
    """Largest error that passes."""


class CellBase(Plain):
    """One point of the grid."""

    status: CellStatus
    error_kind: ErrorKind | None = None
    """Kind of error. None for a cell with status ok."""
    reason: str | None = None
    """Error in one sentence."""
    inputs_sha256: str | None = None
    """SHA-256 of the inputs, equal for every variant of a comparison."""
    warmup: tuple[SampleBase, ...] = ()
    samples: tuple[SampleBase, ...] = ()
    memory: Memory = Memory()
    flags: tuple[Flag, ...] = ()
    """Warnings for the reader."""
    key: str | None = None
    """SHA-256 of everything that determines the result. A resumed sweep reuses cells with an equal key."""
    timed_at: tuple[Number, Number] | None = None
    """Unix times between which the repeats were timed."""
    energy: Energy | None = None
    """None if not requested (--energy counts the largest cell) or impossible."""
    conditions: Conditions | None = None
    """State of the board. None for a run outside a sweep, or without a driver library."""
    host_load: HostLoad | None = None
    """Other load on the cores. None for a run outside a sweep, or if the system does not count it."""
    demand: Demand | None = None
    """Least work of the cell. None in older records."""
    checked: Checked | None = None
    """None for a workload that checks no results before timing."""

    @property
    def note(self) -> str:
        """Warning after the line that is printed before the cell is measured."""
        return ""


class VariantFacts(Plain):
    """Variant that was measured."""

    name: str
    """Name in the tables."""
    options: dict[str, Scalar] = Field(default_factory=dict)
    """All options, defaults included."""


class Missing(Plain):
    """Reason why a requested value is missing."""

    error_kind: ErrorKind
    reason: str
    """Reason in one sentence."""


class Imported(Plain):
    """Origin of a record that was read from another program's log."""

    source: str
    """Name of the log without its folder."""
    line: Whole
    """Line at which the run begins."""
    evidence: str
    """Line of the log, or option, that identifies the variant."""
    profiler_tables: tuple[str, ...] = ()
    """Tables that torch.profiler printed after the run."""


Moment = tuple[str, int]
"""Start time of a sweep, and a round of it."""


class RunRecord(Plain):
    """One process of one variant."""

    schema_version: Literal[2] = SCHEMA_VERSION
    workload: str
    """Name of the workload in the registry."""
    benchmarker: str
    """Version of this program."""
    run_id: str
    started_at: str
    """ISO 8601, UTC. For an imported run the day, or `undated`."""
    status: Literal["running", "complete", "interrupted", "failed"]
    """`running` in a file means that the process died."""
    error_kind: ErrorKind | None = None
    """Kind of the error that ended the run early. None without an error."""
    reason: str | None = None
    """Error in one sentence."""
    round: Count = 0
    """Round of a sweep; 0 for a single run."""
    sweep: str | None = None
    """Start time of the sweep. None for a single run."""
    place: str | None = None
    """Worker that measured the round, as `local:1` or `node3/0`. None without --places."""
    forked: bool = False
    """Whether the process is a fork of one that had imported the libraries and not used the device."""
    variant: VariantFacts
    environment: Environment
    procedure: dict[str, int | bool | str] = Field(default_factory=dict)
    opened_at: Number | None = None
    """Unix time at which the first cell began. None before that and in older records."""
    limits: Limits | None = None
    """Limits of the device. None in older records."""
    cells: tuple[CellBase, ...] = ()
    profile: Profile | None = None
    no_profile: Missing | None = None
    """Reason why a requested profile is missing."""
    no_energy: Missing | None = None
    """Reason why requested energy is missing."""
    imported: Imported | None = None
    """None for a run of this program."""
    reproduce: str
    """Command that repeats the run."""

    @property
    def subject_name(self) -> str:
        """Measured subject in the title of a page."""
        return self.workload

    @property
    def form(self) -> dict[str, str]:
        """Fields that define the variant in addition to its name; equal in all records of one name."""
        options = ", ".join(f"{key}={value}" for key, value in sorted(self.variant.options.items()))
        return {"options": options or "no options"}

    @property
    def family(self) -> str:
        """Name that related variants share."""
        return self.variant.name

    @property
    def baseline_rank(self) -> tuple[bool, ...]:
        """Rank as baseline: the variant with the largest one is the baseline if nobody chose one."""
        return ()

    @property
    def family_place(self) -> int:
        """Position of the variant in its family if single runs are compared."""
        return 0

    @property
    def knows_subject(self) -> bool:
        """Whether the record has its subject's facts; a run that failed early has none."""
        return bool(self.cells)

    @property
    def choices(self) -> Mapping[str, str | None]:
        """Choices that a library made while it ran, such as a kernel; equal in all records that have them."""
        return {}

    @property
    def libraries(self) -> Container[str] | None:
        """Quantization libraries that the variant runs; None if unknown."""
        return None

    @classmethod
    def why_void(cls, records: Sequence[Self]) -> str | None:  # noqa: ARG003
        """Return why no record of a variant has a speed, such as a proof that it computes something else."""
        return None

    @property
    def moment(self) -> Moment:
        """Sweep and round of the run."""
        return self.sweep or "", self.round

    @property
    def last_good(self) -> int | None:
        """Position of the largest cell that ran; cells are measured smallest first."""
        return max((position for position, cell in enumerate(self.cells) if cell.status == "ok"), default=None)
