"""What a record says of an engine: proof of how its tokens were produced."""

from __future__ import annotations

from typing import Literal

from benchmarker.schema.base import Number, Plain, Whole
from benchmarker.schema.external_facts import ExternalFacts
from benchmarker.schema.kernels_used import KernelUse, ProductChoice


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
