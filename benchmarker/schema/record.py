"""Record of one process: one self-describing JSON file.

Values are in base units (seconds, bytes, counts). Raw samples are kept, so that every number in a table can be computed
from the file. `null` means not measured. A workload's own record, cell and sample are subclasses in
`workloads/NAME/record.py`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from statistics import median
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from benchmarker.core.errors import CellStatus, ErrorKind, status_of
from benchmarker.core.tables import plain_line
from benchmarker.schema.base import Count, Joules, Number, Plain, Positive, Rate, Scalar, Seconds, Spent, Whole

SCHEMA_VERSION: Literal[2] = 2

STATUS_TEXTS = {
    "oom_gpu": "out of GPU memory",
    "oom_host": "out of memory",
    "timeout": "timed out",
    "crash": "crashed",
    "unsupported": "not supported",
}
Flag = Literal[
    "unstable_warmup",
    "unstable_ttft",
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
DISTURBING: frozenset[Flag] = frozenset({"disturbed", "shared_device"})
"""Flags of a cell whose time depends on other programs."""


def status_words(status: str) -> str:
    return STATUS_TEXTS.get(status, plain_line(status))


class DeviceFacts(Plain):
    kind: Literal["cuda", "rocm", "cpu"] | None
    name: str
    index: Whole | None = None
    uuid: str | None = None
    memory_bytes: Whole | None = None
    capability: str | None = None
    """Compute capability as `9.0`, or the gfx architecture on ROCm."""
    driver: str | None = None
    runtime: str | None = None
    power_limit_w: Number | None = None


class Environment(Plain):
    """Hardware, software and settings that can change a measurement. Required values are null in imported logs only."""

    device: DeviceFacts
    cpu: str | None
    cores: Whole | None
    threads: Whole | None
    memory_bytes: Whole | None
    system: str | None
    python: str | None
    packages: dict[str, str]
    variables: dict[str, str]
    """Environment variables that change behaviour, by an allow-list that excludes tokens."""
    governor: str | None = None
    commit: str | None = None


class HostLoad(Plain):
    """Other load on this process's cores while a cell was timed, from the kernel's counters."""

    seconds: Number
    cores: Whole
    steal_share: Number
    """Share of core time that a hypervisor gave to other machines."""
    others_share: Number
    """Share of core time of programs other than the measured process and the sweep."""
    involuntary_switches_per_s: Number


class Conditions(Plain):
    samples: Whole
    sm_clock_mhz: Whole | None = None
    sm_clock_full_mhz: Whole | None = None
    temperature_c: Number | None = None
    power_w: Number | None = None
    """Mean of the board's power readings, each an average over up to a second."""
    throttled_by: tuple[str, ...] | None = ()
    """Reasons for reduced clocks, such as `power_cap`; null if the driver does not report them."""
    processes: Whole | None = None


class KernelTime(Plain):
    calls: Positive
    total_s: Spent
    alone_s: Spent | None = None
    """Part of `total_s` in which no earlier kernel was running; the sum over all kernels is `busy_s`. Null on CPU."""


class Kernel(Plain):
    name: str
    calls: Positive
    total_s: Spent
    """Sum of device times; on CPU the operator's self time."""
    sections: dict[str, KernelTime] = Field(default_factory=dict)


class Section(Plain):
    """Named section of the profiled repeat, such as `prefill`; it ends at the start of the next section."""

    busy_s: Spent
    """Time with at least one kernel of the section running; on CPU the sum of self times."""
    span_s: Spent | None = None
    launches: Count | None = None


class Profile(Plain):
    """One repeat under torch.profiler, after the timing and excluded from statistics."""

    by: Literal["device", "cpu"]
    latency_s: Seconds
    kernel_s: Spent
    busy_s: Spent
    """Time with at least one kernel running on any stream; on CPU equal to `kernel_s`."""
    span_s: Spent
    kernels: tuple[Kernel, ...]
    sections: dict[str, Section] = Field(default_factory=dict)
    peak_allocated_bytes: Whole | None = None
    trace: str | None = None

    @property
    def subject(self) -> str:
        return "one call"


class EnergyWindow(Plain):
    """Energy of generations that run back to back for at least ten seconds."""

    seconds: Seconds
    energy_j: Joules
    generations: Positive
    temperature_before_c: Number | None = None
    temperature_after_c: Number | None = None


class Energy(Plain):
    """Energy of a cell's generations, counted apart from the timed repeats."""

    idle_power_w: Number | None = None
    generation: Annotated[tuple[EnergyWindow, ...], Field(min_length=1)]
    prefill: tuple[EnergyWindow, ...] = ()


class Limits(Plain):
    """Limits of the device, measured in this process before a model was loaded."""

    read_bytes_per_s: Rate
    copy_bytes_per_s: Rate
    """Bandwidth of copying one half of the array to the other, bytes read plus written."""
    array_bytes: Whole
    matmul_flops_per_s: Rate
    """Rate of a product of square matrices with 2 * n^3 operations; on CPU the fastest of several sizes and types."""
    matmul_dtype: str
    matmul_size: Whole
    cache_bytes: Whole | None = None
    launch_s: Number | None = None
    """Host time of one launch of an empty kernel in a series, without torch's operators. Not on CPU."""
    operator_s: Number | None = None
    """Host time of torch's smallest operator, with Python and the dispatcher. Not on CPU."""
    graph_kernel_s: Number | None = None
    """Time of one empty kernel in a replayed graph. Not on CPU."""

    @property
    def bytes_per_s(self) -> float:
        return max(self.read_bytes_per_s, self.copy_bytes_per_s)


class Demand(Plain):
    flops: Count | None = None
    bytes: Count | None = None


class SampleBase(Plain):
    latency_s: Seconds
    """Time of one call until its last result; the device is synchronized before both clock readings."""
    calls: Positive = 1
    """Number of calls timed together if one is too short for the clock; `latency_s` is their mean."""
    parts_s: dict[str, Spent] = Field(default_factory=dict)
    peak_allocated_bytes: Whole | None = None


class Memory(Plain):
    peak_allocated_bytes: Whole | None = None
    peak_reserved_bytes: Whole | None = None
    device_used_bytes: Whole | None = None
    """Growth of the whole device's used memory since the start of the process, with context and libraries."""
    peak_resident_bytes: Whole | None = None
    """Peak resident memory of the process, Python and libraries included. On CPU only."""
    resident_growth_bytes: Whole | None = None
    """Growth of resident memory since before the model was loaded: the memory needed on a CPU."""
    graph_pool_bytes: Whole | None = None
    """Memory of the captured graph's own tensors, which the allocator counts as free between replays."""
    per_gpu_bytes: tuple[Whole, ...] = ()


class Checked(Plain):
    against: str
    """Reference, such as `the same in float64`."""
    error: Spent
    """Largest difference, relative to the largest value of the reference."""
    tolerance: Spent


class CellBase(Plain):
    status: CellStatus
    error_kind: ErrorKind | None = None
    reason: str | None = None
    inputs_sha256: str | None = None
    """SHA-256 of the inputs, equal for every variant of a comparison."""
    warmup: tuple[SampleBase, ...] = ()
    samples: tuple[SampleBase, ...] = ()
    memory: Memory = Memory()
    flags: tuple[Flag, ...] = ()
    key: str | None = None
    """SHA-256 of everything that determines the result. A resumed sweep reuses cells with an equal key."""
    timed_at: tuple[Number, Number] | None = None
    energy: Energy | None = None
    conditions: Conditions | None = None
    host_load: HostLoad | None = None
    demand: Demand | None = None
    checked: Checked | None = None

    @property
    def note(self) -> str:
        """Warning at the end of the line that is printed before the cell is measured."""
        return ""


def median_latency_s(cell: CellBase) -> float:
    """Return the median latency of the samples, of which there must be at least one."""
    return median(sample.latency_s for sample in cell.samples)


class VariantFacts(Plain):
    name: str
    options: dict[str, Scalar] = Field(default_factory=dict)


DISTURBANCES: tuple[ErrorKind, ...] = ("disturbed", "merged_tokens", "throttled", "shared_device")


class Missing(Plain):
    error_kind: ErrorKind
    reason: str

    @property
    def status(self) -> CellStatus:
        return status_of(self.error_kind)


class Imported(Plain):
    """Origin of a record that was read from another program's log."""

    source: str
    line: Whole
    evidence: str
    profiler_tables: tuple[str, ...] = ()


Moment = tuple[str, int]


class RunRecord(Plain):
    baseline_family: ClassVar[str] = ""  # Family of the default baseline.

    schema_version: Literal[2] = SCHEMA_VERSION
    workload: str
    benchmarker: str
    run_id: str
    started_at: str
    """ISO 8601, UTC. For an imported run the day, or `undated`."""
    status: Literal["running", "complete", "interrupted", "failed"]
    error_kind: ErrorKind | None = None
    reason: str | None = None
    round: Count = 0
    sweep: str | None = None
    place: str | None = None
    """Worker that measured the round, as `local:1` or `node3/0`. Only with --places."""
    forked: bool = False
    """True if the process is a fork of a process that had imported the libraries and not used the device."""
    variant: VariantFacts
    environment: Environment
    procedure: dict[str, int | bool | str] = Field(default_factory=dict)
    opened_at: Number | None = None
    limits: Limits | None = None
    cells: tuple[CellBase, ...] = ()
    profile: Profile | None = None
    no_profile: Missing | None = None
    no_energy: Missing | None = None
    imported: Imported | None = None
    reproduce: str

    @property
    def subject_name(self) -> str:
        """Name of the measured subject for the title of a page."""
        return self.workload

    @property
    def form(self) -> dict[str, str]:
        """Fields that define the variant in addition to its name; equal in all records of the same variant name."""
        options = ", ".join(f"{key}={value}" for key, value in sorted(self.variant.options.items()))
        return {"options": options or "no options"}

    @property
    def family(self) -> str:
        return self.variant.name

    @property
    def baseline_rank(self) -> tuple[bool, ...]:
        """Sort key of the default baseline, which is the variant with the largest key."""
        return (self.family == self.baseline_family,)

    @property
    def family_place(self) -> int:
        return 0

    @property
    def knows_subject(self) -> bool:
        """True if the record has facts on its subject; a run that failed early has none."""
        return bool(self.cells)

    @property
    def is_disturbed(self) -> bool:
        """True if other programs or the board made all cells invalid; no table or statistic uses such a record."""
        return bool(self.cells) and all(cell.error_kind in DISTURBANCES for cell in self.cells)

    @property
    def is_discarded(self) -> bool:
        """True if the record is not counted as a process: it is disturbed, or was stopped before its first cell."""
        return self.is_disturbed or (not self.cells and self.status in ("running", "interrupted"))

    @property
    def setup_s(self) -> float | None:
        """Seconds of the first generation at a new shape, with its compilation; None if not measured."""
        return None

    @property
    def choices(self) -> Mapping[str, str | None]:
        """Choices of a library at run time, such as a kernel; equal in all records of a variant that contain them."""
        return {}

    @property
    def libraries(self) -> Container[str] | None:
        return None

    @classmethod
    def why_void(cls, records: Sequence[Self]) -> str | None:  # noqa: ARG003
        return None

    @property
    def why_unfit(self) -> str | None:
        """Reason other than memory for which `--find-limit` rejects the last cell, such as an SLO; None if accepted."""
        return None

    def limit_unit(self, axis: str) -> str | None:  # noqa: ARG002
        """Return unit and limit of an axis: `requests per second within TTFT 500 ms`; None if memory is the limit."""
        return None

    @property
    def moment(self) -> Moment:
        return self.sweep or "", self.round

    @property
    def last_good(self) -> int | None:
        return max((position for position, cell in enumerate(self.cells) if cell.status == "ok"), default=None)
