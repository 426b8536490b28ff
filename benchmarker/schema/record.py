"""What came out of a run: one self-describing JSON file per process.

Base units throughout (seconds, bytes, counts). Raw samples are kept, so that every number in every table can be
computed again from the file alone. `null` means not measured; nothing is ever 0 for want of a value.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchmarker.schema.base import Count, Number, Plain, Positive, Seconds, Whole
from benchmarker.schema.energy import Energy as Energy
from benchmarker.schema.energy import EnergyWindow as EnergyWindow
from benchmarker.schema.kernels_used import KernelUse
from benchmarker.schema.profile import Kernel as Kernel
from benchmarker.schema.profile import Profile as Profile
from benchmarker.schema.quality import Quality, TaskResult
from benchmarker.schema.roofline import Demand, Limits

SCHEMA_VERSION = 1
"""1: the first one."""

CellStatus = Literal["ok", "invalid", "oom_gpu", "oom_host", "timeout", "crash", "unsupported", "error"]


class Sample(Plain):
    """One timed repeat."""

    latency_s: Seconds
    """End to end, from the call to the last token, with the device drained at both ends."""
    ttft_s: Seconds | None = None
    """Time to first token: from the call until the first new token is known."""
    tpot_s: Seconds | None = None
    """Time per output token after the first: (last token - first token) / (tokens - 1). None for a single token."""
    new_tokens: Count
    """Tokens made per sequence, counted in the output."""
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
    """Most resident memory of the process. Given on CPU, where it is the memory needed."""
    graph_pool_bytes: Whole | None = None
    """Kept from the allocator's other users for the captured graph's own tensors, which count as free between replays.
    None where nothing is captured."""


class Conditions(Plain):
    """The board while one cell's repeats were timed, sampled by another process through the driver."""

    samples: Whole
    sm_clock_mhz: Whole | None = None
    """Median clock of the compute units."""
    sm_clock_full_mhz: Whole | None = None
    """The clock that the board runs at by default when nothing holds it back."""
    temperature_c: Number | None = None
    """The highest."""
    power_w: Number | None = None
    """Mean of the board's own readings, which it averages over up to a second."""
    throttled_by: tuple[str, ...] | None = ()
    """What held the clocks down at any time, such as `power_cap` or `hardware_thermal`. None where the driver does not
    say."""
    processes: Whole | None = None
    """Most that computed on the board at once: 1 is the measured one alone. None where the driver does not say."""


class StepFacts(Plain):
    """The decode step that a runtime with a static cache had ready for the shape of one cell."""

    graph_kernels: Whole | None = None
    """Kernels, copies and fills in its graph, by the driver's own count. None where none is captured."""
    attention: str | None = None
    """How it attends to the cache, and whether it reads all of it."""


class Cell(Plain):
    """One point of the grid."""

    prompt_tokens: Positive
    new_tokens: Positive
    batch_size: Positive
    depth: Count = 0
    """Tokens that were in the KV cache already when the prompt came, put there before the clock started."""
    text: Count | None = None
    """Which of the texts that were asked for the prompt is, from 0. None for a prompt of a length."""
    status: CellStatus
    reason: str | None = None
    """Why it is not ok, in one sentence."""
    prompt_sha256: str | None = None
    """Of the token ids (those of the depth, then the prompt's), comma-separated decimals: the same for every variant
    of a comparison."""
    prompt_source: str | None = None
    """Where the ids came from: the shipped text, a text that was given, or random ids where there is no tokenizer."""
    warmup: tuple[Sample, ...] = ()
    samples: tuple[Sample, ...] = ()
    memory: Memory = Memory()
    step: StepFacts | None = None
    """None for `generate`, which has none ready, and in records from before each cell said so."""
    first_tokens: tuple[Whole, ...] = ()
    """The first new tokens of the first sequence, at most 64."""
    flags: tuple[str, ...] = ()
    """What a reader should know before believing the cell, such as `unstable_warmup`."""
    key: str | None = None
    """SHA-256 of everything that determines the result: a sweep that goes on reuses cells of an equal key."""
    timed_at: tuple[Number, Number] | None = None
    """Unix times between which the repeats were timed."""
    energy: Energy | None = None
    """None where it was not asked for (--energy takes the largest cell) or could not be counted."""
    conditions: Conditions | None = None
    """How the board was meanwhile. None for a run outside a sweep, and where no driver library answers."""
    demand: Demand | None = None
    """What the cell's work cannot do without. None in records from before this was counted."""


class ModelFacts(Plain):
    """Which model was measured."""

    id: str
    """As the user gave it."""
    revision: str | None = None
    """The hub commit that the files came from; None for a folder or a dummy."""
    config_sha256: str | None = None
    """Of the model's shapes, so that equal names with different shapes do not pass as equal."""
    load_format: Literal["auto", "dummy"] = "auto"
    dtype: str = "float16"
    """The 16- or 32-bit type of what is not quantized."""
    parameters: Whole | None = None
    """Each shared tensor counted once."""
    trust_remote_code: bool = False
    chat_template: bool = False


class VariantFacts(Plain):
    """Which form of it."""

    name: str
    quant: str
    runtime: str
    options: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    """All of the loader's options, defaults included."""
    engine_options: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    """All of the engine's options, defaults included. Empty for an engine that has none."""


class LoadFacts(Plain):
    """What loading cost, and what it made."""

    load_s: Number
    """From the call until the model is on the device, ready to generate. Reading from disk is in it."""
    quantize_s: Number | None = None
    """How long quantizing the checkpoint took when that was done here, now or in an earlier run; it is not in
    `load_s`. None where the checkpoint was found quantized, or is quantized while loading."""
    peak_bytes: Whole | None = None
    """Most bytes while loading: live tensors on a GPU, resident memory on CPU."""
    weight_bytes: Positive
    """Unique storages of all parameters and buffers, with the scales that quantization adds."""
    parameters: Positive
    """Of the architecture: a packed weight counts as what it was packed from, a shared one once."""
    bits_per_weight: Number
    """8 * weight_bytes / parameters: the effective width, unquantized parts and scales included."""
    quantized_fraction: Number
    """Share of the parameters that is stored in fewer than 16 bits."""
    linear_classes: dict[str, Whole]
    """Class of each linear layer, with how many there are."""
    weight_classes: dict[str, Whole]
    """Class of each linear layer's weight tensor: torchao's linears are plain `Linear`, their weights are not."""
    lm_head_dtype: str
    lm_head_tied: bool
    """Whether the output layer shares its storage with the input embedding."""
    notes: tuple[str, ...] = ()
    """What the loader wants read, such as a checkpoint's own config that won over an option."""


class RuntimeFacts(Plain):
    """Proof of how the tokens were produced."""

    name: str
    tokens_read: Literal["each", "end"]
    """Whether the host reads every token as it is made, as `generate` does, or all of them at the end."""
    kv_cache: Literal["dynamic", "static", "paged"]
    setup_s: Number | None = None
    """Time of the first generation at a new shape, with compilation or capture in it, and without filling the cache to
    a depth; the longest where there were several. None where nothing is set up."""
    setup_cache: Literal["cold", "warm"] | None = None
    """`warm` where every graph came out of the compiler's cache on disk. None where nothing is compiled."""
    compiled: Literal["layer", "step"] | None = None
    """What one compilation covers: a decoder layer, which all layers run, or the whole step."""
    frames_compiled: Whole | None = None
    """Graphs that the compiler made, over all shapes."""
    graph_breaks: Whole | None = None
    """None where nothing was compiled; else 0, since a break is an error before anything is timed."""
    recompilations: Whole | None = None
    """While timing: one makes the cell `unsupported`."""
    graphs_captured: Whole | None = None
    """CUDA or HIP graphs of a decode step, over all shapes. None where none is asked for."""
    graph_replays: Whole | None = None
    """Decode steps in timed runs that were a replay of such a graph."""
    graph_kernels: Whole | None = None
    """Kernels, copies and fills in the graph that ran last, by the driver's own count: a step that runs more of them
    when it is not replayed was not recorded whole, and its cells are invalid."""
    attention: str | None = None
    """How the decode step that ran last attends to its static cache. None for `generate`'s own way."""
    prefill: Literal["captured", "plain"] | None = None
    """Whether the prompt goes through a captured graph, or is launched kernel by kernel. None where the engine has one
    way only."""
    prefill_reason: str | None = None
    """Why a prefill that is captured elsewhere is plain here."""
    kernels_used: tuple[KernelUse, ...] = ()
    """Whose kernels a decode step uses. Empty in records from before this was a value."""
    own_products: str | None = None
    """The same of this program's own kernels, in sentences, in records from before `kernels_used`."""
    engine_version: str | None = None
    """Of an engine that is a program of its own. None where the versions of the environment tell it."""
    kernels_per_token: Number | None = None
    """Kernels that one decode step runs on the device, counted by the profiler at the last cell that ran. None on CPU
    and without a profile."""


class DeviceFacts(Plain):
    """The device that was measured."""

    kind: Literal["cuda", "rocm", "cpu"] | None
    """None where an imported log does not say."""
    name: str
    index: Whole | None = None
    uuid: str | None = None
    memory_bytes: Whole | None = None
    capability: str | None = None
    """Compute capability as `9.0`, or the gfx architecture on ROCm."""
    driver: str | None = None
    runtime: str | None = None
    """CUDA or HIP version that torch was built for."""


class Environment(Plain):
    """Everything around the measurement that can change it. None only where a log that was imported does not say."""

    device: DeviceFacts
    cpu: str | None
    cores: Whole | None
    """Logical processors this process may use."""
    threads: Whole | None
    """torch's intra-operator threads."""
    memory_bytes: Whole | None
    system: str | None
    python: str | None
    packages: dict[str, str]
    """Versions of torch, transformers and the quantization libraries, where installed."""
    variables: dict[str, str]
    """Environment variables that change behaviour, by an allow-list; never a token."""
    commit: str | None = None
    """git commit of benchmarker, with `+changes` where the tree was not clean."""


class Imported(Plain):
    """Where a record was read that another program's log holds."""

    source: str
    """Name of the log, without its folder."""
    line: Whole
    """Where the run begins in it."""
    evidence: str
    """What says which variant it is: a line of the log, or an option."""
    profiler_tables: tuple[str, ...] = ()
    """As torch.profiler printed them after the run; `profiling.table_reader` reads them."""


Moment = tuple[str, int]
"""A sweep, by when it began, and its round."""


class RunRecord(Plain):
    """One process, one variant."""

    schema_version: int = SCHEMA_VERSION
    benchmarker: str
    """Version of this program."""
    run_id: str
    started_at: str
    """ISO 8601, UTC. Of an imported run the day, or `undated`."""
    status: Literal["running", "complete", "interrupted", "failed"]
    """`running` in a file means that the process died before it could say more."""
    reason: str | None = None
    """Why a run failed before it could measure, in one sentence."""
    round: Count = 0
    """Which round of a sweep; 0 for a single run."""
    sweep: str | None = None
    """When that sweep began: rounds of another one are other rounds. None for a single run."""
    model: ModelFacts
    variant: VariantFacts
    environment: Environment
    procedure: dict[str, int | bool | str] = Field(default_factory=dict)
    load: LoadFacts | None = None
    runtime: RuntimeFacts | None = None
    limits: Limits | None = None
    """What the device does at best. None in records from before this was measured."""
    text_tokens: tuple[Whole, ...] = ()
    """Lengths of the texts that were asked for, known before the first cell."""
    cells: tuple[Cell, ...] = ()
    profile: Profile | None = None
    no_profile: str | None = None
    """Why there is none although one was asked for."""
    no_energy: str | None = None
    """Why there is none although it was asked for."""
    quality: Quality | None = None
    tasks: tuple[TaskResult, ...] = ()
    """Answers to benchmark questions, where they were asked."""
    no_tasks: str | None = None
    """Why there are none although they were asked for."""
    no_quality: str | None = None
    """Why there is none although it was asked for."""
    imported: Imported | None = None
    """None where this program measured."""
    reproduce: str
    """The command that makes this record again."""

    @property
    def moment(self) -> Moment:
        """What it was measured in turns with: the sweep and its round."""
        return self.sweep or "", self.round

    @property
    def last_good(self) -> int | None:
        """Position of the largest cell that ran; cells are measured smallest first."""
        return max((at for at, cell in enumerate(self.cells) if cell.status == "ok"), default=None)
