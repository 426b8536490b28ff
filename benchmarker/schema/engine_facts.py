"""What a record says of an engine: proof of how its tokens were produced."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchmarker.schema.base import Number, Plain, Whole

DISAGREEMENT = 0.02
"""Share by which an engine's own times may differ from our clock's before the row is flagged."""


class ExternalFacts(Plain):
    """Build, settings and proof of what ran. None where the engine does not tell."""

    environment: str
    """Name of the environment; its pins are known by it and by `version`."""
    version: str
    python: str
    commit: str | None = None
    library_sha256: str | None = None
    """Of llama.cpp's library: which build it was, where no commit is known."""
    build: str | None = None
    """What the engine says of its build: backends and instruction sets."""
    settings: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    """What it was opened with."""
    weight_bytes: int | None = None
    weight_bytes_by_type: dict[str, int] = Field(default_factory=dict)
    tensors_by_type: dict[str, int] = Field(default_factory=dict)
    parameters: int | None = None
    """Of a GGUF file's tensors, as the next three."""
    packed_parameters: int | None = None
    """In fewer than 16 bits."""
    output_type: str | None = None
    """Of the output layer, which may differ from the form's name: llama.cpp's Q4_0 has it in Q6_K."""
    is_tied: bool | None = None
    """Whether the embedding is the output layer too."""
    linear_methods: dict[str, int] = Field(default_factory=dict)
    """vLLM's class of each layer's way of multiplying, with how many layers have it."""
    attention: tuple[str, ...] = ()
    kv_cache_bytes: int | None = None
    """Reserved at the start for all requests that may come: not what one generation needs."""
    peak_bytes: int | None = None
    """Most host memory that the engine's process held."""
    fallback: str | None = None
    """Tensors that the form's name does not cover."""
    choosing_share: float | None = None
    """Share of the decode time that went into choosing tokens on the host, in the last generation."""
    step_s: float | None = None
    """Median seconds of a step of the last generation without choosing the token: what llama-bench times."""
    disagreement: float | None = None
    """Share by which the engine's own TTFT or seconds a token, whichever is worse, differ from our clock's: the median
    over all generations. None where it gives no times of its own."""
    ttft_disagreement: float | None = None
    """Relative difference between the engine's own TTFT and our clock's, median over all generations. None in records
    that have only `disagreement`."""
    tpot_disagreement: float | None = None
    """Relative difference between the engine's own seconds per token and our clock's, median over all generations."""

    @property
    def times_disagree(self) -> bool:
        """Whether the row needs a flag."""
        return self.disagreement is not None and self.disagreement > DISAGREEMENT


Purpose = Literal["linear", "packed_rows", "joined_linears", "swiglu", "attention", "layer"]
Origin = Literal["library", "inductor", "benchmarker"]
OWN_ATTENTION = "one kernel, reads the filled part"
"""What a record says of this program's attention to the cache; of others, whose they are stands before the comma."""


class KernelUse(Plain):
    """One kernel, or one kind of layer, that a decode step uses."""

    purpose: Purpose
    """`packed_rows` is the product of packed weights with several rows, `linear` that with one; `joined_linears` are
    several linears of one input as one; `swiglu` is an MLP's activation inside its product; `layer` is a whole decoder
    layer made of few kernels."""
    origin: Origin
    """Whose kernel it is: the library's that brought the layer, written by torch's compiler, or this program's."""
    name: str
    """The kernel's name, or the library's class of layer."""
    covered: int | None = None
    """Linears that it multiplies by. None where it is not about linears, and where all that could be are."""
    total: int | None = None
    """Linears of the model."""

    def words(self) -> str:
        """`gemv_gptq, benchmarker's own kernel: 252 of 253 linears`."""
        owner = {
            "library": "the library's",
            "inductor": "torch's compiler's",
            "benchmarker": "benchmarker's own kernel",
        }
        what = {
            "linear": "multiplies",
            "packed_rows": "multiplies packed weights by several rows",
            "joined_linears": "linears of one input are one product",
            "swiglu": "an MLP's activation is part of its product",
            "attention": "attends to the KV cache",
            "layer": "a decoder layer of one sequence is five kernels",
        }[self.purpose]
        count = "" if self.covered is None else f": {self.covered} of {self.total} linears"
        return f"{self.name}, {owner[self.origin]}, {what}{count}"


class ProductChoice(Plain):
    """How the products of one shape are made in a step of several sequences, and the measurement that chose it: of this
    process, or of the first on this machine."""

    form: str
    """Form of the weights, in the words of `kernels/packed_matmul.py`."""
    rows: Whole
    """Sequences of the step."""
    inputs: Whole
    outputs: Whole
    way: str
    """The fastest candidate, by its name in `us`."""
    us: dict[str, Number]
    """What each candidate took alone, in microseconds, with its weights out of the last cache."""

    def words(self) -> str:
        """`nf4, 2560 inputs to 6144 outputs, 8 rows: 9.1 us by 64 outputs, ... (of 5 ...)`."""
        slowest = max(self.us.values(), default=0.0)
        return (
            f"{self.form}, {self.inputs} inputs to {self.outputs} outputs, {self.rows} rows: "
            f"{self.us.get(self.way, 0.0):.1f} us by {self.way} (of {len(self.us)} candidates; "
            f"the slowest {slowest:.1f} us)"
        )


def attention_use(attention: str) -> KernelUse:
    """Return the kernel of a decode step's attention.

    Args:
        attention: As in `EngineFacts.attention`.
    """
    if attention == OWN_ATTENTION:
        return _own("attention", "decode_attention")
    return KernelUse(purpose="attention", origin="library", name=attention.split(",")[0])


def one_row(uses: tuple[KernelUse, ...]) -> tuple[KernelUse, ...]:
    """Return the kernels of a step with fused decode layers, which have their own attention kernel."""
    rest = tuple(use for use in uses if use.purpose != "attention")
    return (*rest, _own("layer", "one_row_layer"), _own("attention", "one_row_attention"))


def _own(purpose: Purpose, name: str) -> KernelUse:
    return KernelUse(purpose=purpose, origin="benchmarker", name=name)


def multiplies_all_packed(uses: tuple[KernelUse, ...]) -> bool:
    """Whether all of GPTQ's linears are multiplied by this program's kernel, and none by the library's."""
    has_own = any(use.name == "gemv_gptq" for use in uses)
    return has_own and not any(use.purpose == "linear" and use.origin == "library" for use in uses)


class StepFacts(Plain):
    """The decode step that a runtime with a static cache had ready for the shape of one cell."""

    graph_kernels: Whole | None = None
    """Kernels, copies and fills in its graph, by the driver's own count. None where none is captured."""
    attention: str | None = None
    """How it attends to the cache, and whether it reads all of it."""
    products: tuple[ProductChoice, ...] = ()
    """How native's products with several rows are made, where that was measured at set-up; by shape of the matrix."""


class EngineFacts(Plain):
    """Proof of how the tokens were produced."""

    name: str
    tokens_read: Literal["each", "end"]
    """Whether the host reads every token as it is made, as `generate` does, or all of them at the end."""
    kv_cache: Literal["dynamic", "static", "paged", "quantized"]
    kv_cache_stored: str | None = None
    """How a quantized one stores keys and values; None for the others, which have the activations' type."""
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
    """Where a captured prefill was asked for: whether it was captured, or launched kernel by kernel. None where it was
    not asked for: launched as the model does it."""
    prefill_reason: str | None = None
    """Why a prefill that was to be captured is plain."""
    kernels_used: tuple[KernelUse, ...] = ()
    """Whose kernels a decode step uses. In records of schema 1 this program's own, and those that attend."""
    engine_version: str | None = None
    """Of an engine that is a program of its own. None where the versions of the environment tell it."""
    external: ExternalFacts | None = None
    """Build, settings and proof of an engine that runs in a process of its own."""
    kernels_per_token: Number | None = None
    """Kernels that one decode step runs on the device, counted by the profiler at the last cell that ran. None on CPU
    and without a profile."""
