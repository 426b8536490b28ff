"""What to do about what a unit waits for, where the workload says nothing better. No numbers: those are in the reason,
so that variants with one cause share the advice."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarker.core.tables import code
from benchmarker.explain.case import Case
from benchmarker.explain.values import Bound, Ceiling, Phase
from benchmarker.schema.record import Limits


def always(text: str) -> Callable[[Case], str]:
    """The same for every case."""
    return lambda case: text


ADVICE: Mapping[Bound, Callable[[Case], str]] = {
    "host": always("Fewer launches help: larger inputs, a captured graph or a compiled step."),
    "bandwidth": always("It is near what the memory allows: only fewer bytes make it faster."),
    "compute": always("It is near what the arithmetic units allow: fewer or shorter operands make it faster."),
    "slow products": always("A better kernel for the products helps most."),
    "matrix products": always(
        f"Measure the bandwidth too (leave {code('--no-limits')} out): it tells what the products lack."
    ),
    "dequantizing": always("A kernel that multiplies the packed weights saves it."),
    "attention/KV": always("Another attention kernel, or a shorter context, helps most."),
    "linear attention": always("Another kernel of the mixer, a smaller state, or fewer heads help most."),
    "copies": always("Fewer or fused copies help most."),
    "communication": always("Less of it, or more arithmetic beside it, helps most."),
    "small kernels": always("Fusing them helps most."),
    "unknown kernels": always("What they are for is not known; their names are in the notes."),
}


def graph_ceiling(phase: Phase, limits: Limits | None, *, units: int) -> Ceiling:
    """Units a second if the host never made the device wait, as in a replayed graph: between

        units / (busy + kernels * an empty kernel in a replayed graph)   and   units / busy

    An empty kernel's time has all in it that one node of a graph costs the device, its own end and the next one's
    start; between two real kernels some of that is hidden. Eight graphs that were measured took 0.11 to 0.45 us a
    kernel, where an empty one takes 0.53 to 0.79 us (results/reference/h100-runtimes and h200-runtimes).
    """
    if limits is None or limits.graph_kernel_s is None:
        return Ceiling(units / phase.busy_s, None)
    longest_s = phase.busy_s + phase.kernel_calls * limits.graph_kernel_s
    return Ceiling(units / phase.busy_s, units / longest_s)
