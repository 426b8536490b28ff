"""What to do about what a token waits for, with the ceiling that it would lift where that can be computed."""

from __future__ import annotations

from benchmarker.explain.evidence import Case
from benchmarker.explain.numbers import rate
from benchmarker.explain.values import Bound, Ceiling, Phase
from benchmarker.schema.roofline import Limits

_ALWAYS: dict[Bound, str] = {
    "bandwidth": "Only fewer bytes a token make it faster: fewer bits a weight, or an output layer that is quantized.",
    "compute": "Fewer bits a weight do not help here; a form that multiplies in 8 bits too, or a smaller batch, does.",
    "attention/KV": "The weights are not what it waits for: a shorter context or a quantized KV cache helps.",
    "bandwidth or compute": "A run without `--no-limits` (`limits: false` in a config) measures the bandwidth, which "
    "tells the two apart.",
}


def advice_for(bound: Bound, case: Case) -> str:
    """One or two sentences."""
    return {
        "host": _host,
        "dequantizing": _dequantize,
        "copies": lambda case: f"Fewer or fused copies help, not fewer bits: {_static(case)}",
        "mixed": _mixed,
    }.get(bound, lambda _: _ALWAYS[bound])(case)


def graph_ceiling(phase: Phase, limits: Limits | None, *, batch_size: int) -> Ceiling:
    """Tokens a second if the host never made the device wait, as in a replayed graph.

        seconds = busy + kernels * max(0, time of an empty kernel in a graph - shortest kernel)

    An empty kernel in a graph takes its own time, about that of the shortest in the profile, and what is left of a
    launch there.
    """
    if limits is None or limits.graph_kernel_s is None:
        return Ceiling(batch_size / phase.busy_s, is_bound=True)
    shortest_s = min(kernel.total_s / kernel.calls for kernel in phase.kernels)
    left_s = max(0.0, limits.graph_kernel_s - shortest_s)
    return Ceiling(batch_size / (phase.busy_s + phase.kernel_calls * left_s), is_bound=False)


def _host(case: Case) -> str:
    if case.phase.by == "cpu":
        return "Quantization changes nothing of that part; " + (
            "`--runtime compile` takes Python and dispatch out of each token."
            if case.runtime == "eager"
            else "a larger model or batch gives the processor more to do at once."
        )
    if case.runtime != "eager":
        return (
            "Quantization cannot help here. What the host still does between tokens is in the way; a larger batch "
            "fills the gaps."
        )
    if not case.can_be_captured:
        return (
            "Quantization cannot help here, and no graph can hold this kernel; `--option kernel=torch "
            "--runtime compile` is GPTQ with the host out of the way."
        )
    ceiling = graph_ceiling(case.phase, case.limits, batch_size=case.batch_size)
    alone = ", the kernels' time alone" if ceiling.is_bound else ""
    return (
        f"Quantization cannot help here. `--runtime graph` would lift the ceiling to {'at most' if alone else 'about'} "
        f"{rate(ceiling.tokens_per_s)}{alone}."
    )


def _mixed(case: Case) -> str:
    if case.slow_products is not None:
        return "A better kernel for the products helps, before fewer bits do."
    return f"No single change helps much: {_static(case)}"


def _dequantize(case: Case) -> str:
    """By form and device: which kernel multiplies packed weights."""
    wanted = "A kernel that multiplies the packed weights saves it"
    if case.quant == "int8" and case.runtime not in ("compile", "native"):
        return f"{wanted}: `--runtime compile` fuses the conversion into the product."
    if case.quant == "gptq":
        # gptqmodel's triton kernel unpacks, and leaves the product to the library for 16 bits.
        # ExLlamaV2's cannot be captured.
        on_cuda = "exllama_v2" if case.runtime == "eager" else "marlin"
        kernel = {"cuda": on_cuda, "cpu": "torch_aten"}.get(case.device or "")
        if kernel is None:
            return (
                f"{wanted}; gptqmodel has such kernels for NVIDIA GPUs and CPUs alone, bitsandbytes (bnb4) for AMD too."
            )
        return f"{wanted}: `--option kernel={kernel}` is one."
    if case.quant == "bnb4":
        return f"{wanted}; bitsandbytes has one for few tokens at a time, and dequantizes first for more."
    return f"{wanted}."


def _static(case: Case) -> str:
    if case.runtime == "eager":
        return "`--runtime compile` fuses casts and small kernels, and its KV cache is written in place."
    if case.runtime in ("graph", "cuda_graph"):
        return "`--runtime compile` fuses casts and small kernels."
    return "the kernels themselves would have to be better."
