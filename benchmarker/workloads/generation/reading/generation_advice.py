"""Advice for each part of a token's time, with the option of `benchmarker run` that follows it."""

from __future__ import annotations

from typing import cast

from benchmarker.core.formatting import ms, percent
from benchmarker.core.tables import code
from benchmarker.explain.phases import Phase
from benchmarker.explain.waterfall import Advice, Timed
from benchmarker.profiling.kernel_categories import category
from benchmarker.schema.record import Profile
from benchmarker.workloads.generation.record import GenerationRecord

UNCAPTURED = frozenset({"ExllamaV2Linear"})
"""Classes of layers that launch kernels on the default stream, which a graph cannot capture."""
TOUCHED_BELOW = 0.05  # Share of a token's time spent on weights, below which quantization cannot help.
FUSES = f"{code('--engine compile')} fuses casts and small kernels"


def can_be_captured(record: GenerationRecord) -> bool:
    return record.load is None or not UNCAPTURED & set(record.load.linear_classes)


def _record(timed: Timed) -> GenerationRecord:
    return cast("GenerationRecord", timed.record)


def _engine(timed: Timed) -> str:
    return _record(timed).variant.engine


def _is_external(timed: Timed) -> bool:
    return (engine := _record(timed).engine) is not None and engine.external is not None


def _is_fused(timed: Timed) -> bool:
    return _engine(timed) not in ("eager", "cuda_graph")


def _host(timed: Timed) -> str:
    touched = timed.part("floor", "excess", "products", "unpacking")
    first = "Quantization cannot help here. " if touched < TOUCHED_BELOW else ""
    return first + _without_the_host(timed)


def _without_the_host(timed: Timed) -> str:
    if timed.phase.by == "cpu":
        if not _is_fused(timed):
            return f"{code('--engine compile')} removes Python and dispatch overhead from each token."
        return f"A larger model or {code('--batch-size')} increases the work per dispatch."
    if _record(timed).variant.gpus > 1 and _engine(timed) == "eager":
        return (
            "Splitting a model over GPUs does not reduce the host's work. A model that fits one GPU is faster there "
            f"with {code('--engine compile')} or {code('native')}, which do not split a model."
        )
    if _engine(timed) != "eager":
        return f"The host still works between tokens; a larger {code('--batch-size')} amortizes it."
    if not can_be_captured(_record(timed)):
        return (
            "A CUDA graph cannot capture this kernel; "
            f"{code('--option kernel=torch --engine compile')} removes the host's work from each token."
        )
    return f"{code('--engine compile')} removes the host's work from each token."


def _fewer_bytes(timed: Timed) -> str:
    if timed.floor is None or timed.floor.fewer <= 0:
        return "It reads few bits a weight already, about as fast as the memory allows: only a smaller model is faster."
    forms = f"{code('--quant gptq')} and {code('--quant bnb4')} read 4 bits"
    if _is_external(timed) or ((engine := _record(timed).engine) and engine.experts):
        forms = f"{code('--engine vllm --engine-option quantization=fp8')} reads 8 bits, experts included"
    return f"Fewer bytes a token make it faster: {forms}."


def _better_products(timed: Timed) -> str:
    if not _is_fused(timed):
        return (
            f"{code('--engine compile')} has other kernels for the products; fewer bits help less than their size says."
        )
    profile = timed.record.profile
    if profile and any("weight_int8pack_mm" in kernel.name for kernel in profile.kernels):
        return (
            f"In bfloat16 torch.compile replaces them by {code('_weight_int8pack_mm')}, slow for several rows: "
            f"{code('--engine native')} and {code('--dtype float16')} do not use it."
        )
    if _engine(timed) == "compile" and timed.record.environment.device.kind == "cuda":
        return f"{code('--engine native')} has kernels of its own for them; fewer bits help less than their size says."
    if _engine(timed) == "native" and _record(timed).model.dtype == "bfloat16" and timed.form["quant"] == "gptq":
        return f"GPTQ's scales are float16, for which {code('--dtype float16')} has faster kernels."
    return (
        "No option makes these kernels faster; fewer bits help less than their size says, a larger batch costs little."
    )


def _limit_of_products(timed: Timed) -> str:
    if _is_external(timed) and _record(timed).limits:
        return "The engine does not report the bytes that the products read; fewer bits a weight may help."
    return (
        f"A run without {code('--no-limits')} ({code('limits: false')} in a config) measures the bandwidth, which "
        "shows how far they are from it."
    )


def _dequantize(timed: Timed) -> str:
    wanted = "A kernel that multiplies the packed weights saves it"
    engine = _engine(timed)
    quant = None if _is_external(timed) else _record(timed).variant.quant
    if quant == "int8" and not _is_fused(timed) and timed.units == 1:
        return f"{wanted}: {code('--engine compile')} fuses the conversion into the product."
    if quant == "int8" and engine != "native" and timed.record.environment.device.kind == "cuda":
        return f"{wanted}: {code('--engine native')} has one."
    if quant == "gptq":
        # gptqmodel's triton kernel dequantizes weights and leaves the product to a 16-bit GEMM.
        # ExLlamaV2's kernel cannot be captured.
        on_cuda = "exllama_v2" if engine == "eager" else "marlin"
        kernel = {"cuda": on_cuda, "cpu": "torch_aten"}.get(timed.record.environment.device.kind or "")
        if kernel is None:
            return (
                f"{wanted}; gptqmodel has such kernels for NVIDIA GPUs and CPUs alone, bitsandbytes "
                f"({code('--quant bnb4')}) for AMD too."
            )
        return f"{wanted}: {code(f'--option kernel={kernel}')} is one."
    if quant == "bnb4":
        return f"{wanted}; bitsandbytes has one for few tokens at a time, and dequantizes first for more."
    return f"{wanted}."


def _fuse(timed: Timed) -> str:
    if _engine(timed) == "eager":
        return f"{FUSES}, and its KV cache is written in place."
    return (
        f"{FUSES}." if not _is_fused(timed) else f"They are fused already: a larger {code('--batch-size')} shares them."
    )


ADVICE: Advice = {
    "host": _host,
    "bandwidth": _fewer_bytes,
    "compute": f"Fewer bits a weight do not help here; products in 8 bits, or a smaller {code('--batch-size')}, do.",
    "slow products": _better_products,
    "matrix products": _limit_of_products,
    "dequantizing": _dequantize,
    "attention/KV": "The weights do not limit it: a shorter context would help, and in a batch fewer sequences.",
    "linear attention": "The weights do not limit it, and neither does the length of the context.",
    "copies": _fuse,
    "small kernels": _fuse,
}


def communication(profile: Profile, phase: Phase, *, total_s: float) -> tuple[str, ...]:
    """Return a sentence on the time per token of communication between GPUs. `total_s`: time without the profiler."""
    kernels = [kernel for kernel in profile.kernels if category(kernel.name) == "communication"]
    times = [kernel.sections["decode"] for kernel in kernels if "decode" in kernel.sections]
    if not (times and phase.is_decode):
        return ()
    busy_s = sum(time.total_s for time in times) / phase.tokens
    alone_s = phase.categories.get("communication", 0.0)
    alone = f", {ms(alone_s)} of it while nothing else runs" if phase.by == "device" else ""
    return (
        f"communication takes {ms(busy_s)} of a token, {percent(busy_s / total_s)} of its time without the profiler"
        f"{alone}; the first GPU's waiting for the others is in it",
    )
