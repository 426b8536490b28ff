"""What came out of a run: one self-describing JSON file per process. The parts that every workload's records have.

Base units throughout (seconds, bytes, counts). Raw samples are kept, so that every number in every table can be
computed again from the file alone. `null` means not measured; nothing is ever 0 for want of a value. Facts are values:
sentences are made on reading, but for `reason`, which is an error's own.

A workload's own record, cell and sample are subclasses of these, in `workloads/<name>/record.py`.
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
"""1: generation alone, with facts in sentences. 2: a record names its workload, and its facts are values."""

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
"""What a reader should know before believing a cell; the report has the words."""


class EnergyWindow(Plain):
    """Whole generations, back to back, for at least ten seconds."""

    seconds: Seconds
    energy_j: Joules
    """Of the whole board, by its driver's counter, idle power included."""
    generations: Positive
    temperature_before_c: Number | None = None
    temperature_after_c: Number | None = None


class Energy(Plain):
    """What a cell's generations cost, counted apart from the timed repeats."""

    idle_power_w: Number | None = None
    """Of the board with the model loaded and nothing to do, by the same counter."""
    generation: Annotated[tuple[EnergyWindow, ...], Field(min_length=1)]
    """At the cell's shape."""
    prefill: tuple[EnergyWindow, ...] = ()
    """The same with one new token. Empty where the cell has no more."""


class Limits(Plain):
    """What the device does at best, measured in this process before it loaded a model."""

    read_bytes_per_s: Rate
    """Summing an array."""
    copy_bytes_per_s: Rate
    """Copying one half of the array over the other: bytes read plus bytes written."""
    array_bytes: Whole
    """Size of that array: several times the cache, on a GPU 2 GiB."""
    matmul_flops_per_s: Rate
    """Of square matrices in the type that is measured, 2 * n^3 operations each. On a CPU of the fastest of some sizes,
    in that type and in float32."""
    matmul_dtype: str
    """Of those matrices."""
    matmul_size: Whole
    """n."""
    cache_bytes: Whole | None = None
    """The device's last cache before its memory. None where nothing says."""
    launch_s: Number | None = None
    """Host time to launch one empty kernel, many back to back, outside torch's operators. None on CPU."""
    operator_s: Number | None = None
    """The same for torch's smallest operator, with Python and the dispatcher. None on CPU."""
    graph_kernel_s: Number | None = None
    """Time of one empty kernel inside a replayed graph: what is left of a launch there. None on CPU."""

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth: the higher of the two, as decoding reads much more than it writes."""
        return max(self.read_bytes_per_s, self.copy_bytes_per_s)


class Demand(Plain):
    """What one call cannot do without, counted from its shapes and tensors."""

    flops: Count | None = None
    """Floating-point operations. None in records from before it was kept."""
    bytes: Count | None = None
    """Read from and written to the device's memory at least. None in records from before it was kept."""


class SampleBase(Plain):
    """One timed repeat."""

    latency_s: Seconds
    """Of one call, from its beginning to the last of its results, with the device drained at both ends."""
    calls: Positive = 1
    """Calls that were timed together, where one alone is too short for the clock: `latency_s` is their mean."""
    parts_s: dict[str, Spent] = Field(default_factory=dict)
    """Times of named parts of one call."""
    peak_allocated_bytes: Whole | None = None
    """Most bytes of live tensors during this repeat. None on CPU."""


class Memory(Plain):
    """Peaks over the timed repeats of one cell."""

    peak_allocated_bytes: Whole | None = None
    """Most bytes of live tensors, as torch's allocator counts them. None on CPU."""
    peak_reserved_bytes: Whole | None = None
    """Most bytes the allocator held from the driver. None on CPU."""
    device_used_bytes: Whole | None = None
    """Growth of the whole device's memory in use since before this process touched it: with context and libraries."""
    peak_resident_bytes: Whole | None = None
    """Most resident memory of the process, Python and its libraries included. Given on CPU."""
    resident_growth_bytes: Whole | None = None
    """Growth of the process's resident memory from just before the model was loaded, when the libraries were imported,
    to the most in a timed repeat. Given on CPU, where it is the memory needed: the model, its KV cache, activations,
    and some ten MiB of the libraries' code that the first run reads in. None in older records: the table has a dash."""
    graph_pool_bytes: Whole | None = None
    """Kept from the allocator's other users for the captured graph's own tensors, which count as free between replays.
    None where nothing is captured."""
    per_gpu_bytes: tuple[Whole, ...] = ()
    """Peak of each of several GPUs that share the work, in their order: live tensors, as torch's allocator counts them;
    of processes on a CPU the growth of each. Empty for one. `peak_allocated_bytes` is then the largest."""


class Checked(Plain):
    """What one call's results were held against before anything was timed."""

    against: str
    """The reference, such as `the same in float64`."""
    error: Spent
    """Largest difference, relative to the largest value of the reference."""
    tolerance: Spent
    """The largest difference that passes."""


class CellBase(Plain):
    """One point of the grid."""

    status: CellStatus
    error_kind: ErrorKind | None = None
    """Why it is not ok, for a program. None for a cell that is."""
    reason: str | None = None
    """The same in one sentence, for a reader."""
    inputs_sha256: str | None = None
    """Of what went in: the same for every variant of a comparison."""
    warmup: tuple[SampleBase, ...] = ()
    samples: tuple[SampleBase, ...] = ()
    memory: Memory = Memory()
    flags: tuple[Flag, ...] = ()
    """What a reader should know before believing the cell."""
    key: str | None = None
    """SHA-256 of everything that determines the result: a sweep that goes on reuses cells of an equal key."""
    timed_at: tuple[Number, Number] | None = None
    """Unix times between which the repeats were timed."""
    energy: Energy | None = None
    """None where it was not asked for (--energy takes the largest cell) or could not be counted."""
    conditions: Conditions | None = None
    """How the board was meanwhile. None for a run outside a sweep, and where no driver library answers."""
    host_load: HostLoad | None = None
    """What else ran on the cores meanwhile. None for a run outside a sweep, and where the system does not count."""
    demand: Demand | None = None
    """What the cell's work cannot do without. None in records from before this was counted."""
    checked: Checked | None = None
    """None for a workload whose results are not checked before timing."""


class VariantFacts(Plain):
    """Which variant was measured."""

    name: str
    """As the tables show it."""
    options: dict[str, Scalar] = Field(default_factory=dict)
    """All of its options, defaults included."""


class Missing(Plain):
    """Why something that was asked for is not there."""

    error_kind: ErrorKind
    reason: str
    """One sentence."""


class Imported(Plain):
    """Where a record was read that another program's log holds."""

    source: str
    """Name of the log, without its folder."""
    line: Whole
    """Where the run begins in it."""
    evidence: str
    """What says which variant it is: a line of the log, or an option."""
    profiler_tables: tuple[str, ...] = ()
    """As torch.profiler printed them after the run; `profiling.printed_table` reads them."""


Moment = tuple[str, int]
"""A sweep, by when it began, and its round."""


class RunRecord(Plain):
    """One process, one variant."""

    schema_version: Literal[2] = SCHEMA_VERSION
    workload: str
    """What was measured, by its name in the registry of workloads."""
    benchmarker: str
    """Version of this program."""
    run_id: str
    started_at: str
    """ISO 8601, UTC. Of an imported run the day, or `undated`."""
    status: Literal["running", "complete", "interrupted", "failed"]
    """`running` in a file means that the process died before it could say more."""
    error_kind: ErrorKind | None = None
    """Why a run ended early, for a program. None for one that did not."""
    reason: str | None = None
    """The same in one sentence, for a reader."""
    round: Count = 0
    """Which round of a sweep; 0 for a single run."""
    sweep: str | None = None
    """When that sweep began: rounds of another one are other rounds. None for a single run."""
    place: str | None = None
    """Where its round was measured, as `local:1` or `node3/0`. None outside a sweep over several places."""
    forked: bool = False
    """Whether its process was forked of one that had imported libraries and touched no device, and not started anew."""
    variant: VariantFacts
    environment: Environment
    procedure: dict[str, int | bool | str] = Field(default_factory=dict)
    opened_at: Number | None = None
    """Unix time at which everything was loaded and the first cell began. None before that, and in older records."""
    limits: Limits | None = None
    """What the device does at best. None in records from before this was measured."""
    cells: tuple[CellBase, ...] = ()
    profile: Profile | None = None
    no_profile: Missing | None = None
    """Why there is none although one was asked for."""
    no_energy: Missing | None = None
    """Why there is none although it was asked for."""
    imported: Imported | None = None
    """None where this program measured."""
    reproduce: str
    """The command that makes this record again."""

    @property
    def family_place(self) -> int:
        """Position of the variant in its family if single runs are compared."""
        return 0

    @property
    def knows_subject(self) -> bool:
        """Whether the record has its subject's facts: a run that failed early has none."""
        return bool(self.cells)

    @property
    def choices(self) -> Mapping[str, str | None]:
        """What a library chose while it ran, such as a kernel; equal in all records that have it."""
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
        """What it was measured in turns with: the sweep and its round."""
        return self.sweep or "", self.round

    @property
    def last_good(self) -> int | None:
        """Position of the largest cell that ran; cells are measured smallest first."""
        return max((position for position, cell in enumerate(self.cells) if cell.status == "ok"), default=None)
