"""Proof of the layers and kernels that really ran."""

from __future__ import annotations

from benchmarker.core.formatting import percent
from benchmarker.core.tables import plain_line
from benchmarker.explain.values import Conversion, Phase, Proof, code
from benchmarker.profiling.categories import UNKNOWN_LIMIT, category
from benchmarker.schema.model import LoadFacts

FALLBACKS = {
    "TorchLinear": "gptqmodel's fallback, which dequantizes with torch operators and multiplies in 16 bits",
    "TorchFusedLinear": "gptqmodel's fallback",
}
"""Linear classes that run everywhere, for devices without a better one."""
DEQUANTIZE_FROM = 0.15
"""Share of the kernel time from which dequantization is the way that most weights were multiplied."""
SHOWN_KERNELS = 3
FEW = 1 / 3
"""Number of low-bit products per quantized layer below which most layers used another kernel. Fused layers make up to
five of seven products one."""


def proof_of(phase: Phase, load: LoadFacts | None, conversion: Conversion | None, *, replaces_linears: bool) -> Proof:
    """Return the proof from loaded layers and profiled kernels.

    Args:
        load: None if the record lacks it.
        conversion: The copy that converts each weight, if there is one.
        replaces_linears: True if the engine multiplies with other kernels than those of the loaded layers.
    """
    lines = _loaded(load) if load else []
    products = [kernel.name for kernel in phase.kernels if category(kernel.name) in ("matmul", "quantized matmul")]
    if products:
        lines.append(f"matrix products by {', '.join(map(code, products[:SHOWN_KERNELS]))}")
    if load is None or not load.quantized_fraction:
        return Proof(tuple(lines))
    return Proof(tuple(lines), _warnings(phase, load, conversion, replaces_linears=replaces_linears))


def loaded_proof(load: LoadFacts, engine: str) -> Proof:
    """Return the proof from the loaded layers alone."""
    # A compiled step may multiply by a kernel of its own.
    return Proof(tuple(_loaded(load)), tuple(_fallbacks(load)) if engine != "compile" else ())


def _loaded(load: LoadFacts) -> list[str]:
    linears = f"linear layers: {_counted(load.linear_classes)}; " if load.linear_classes else ""
    return [
        f"{percent(load.quantized_fraction)} of the parameters quantized, {load.bits_per_weight:.2f} bits a weight "
        f"with scales and unquantized tensors; lm_head {plain_line(load.lm_head_dtype)}",
        f"{linears}weights: {_counted(load.weight_classes)}",
    ]


def _fallbacks(load: LoadFacts) -> list[str]:
    return [
        f"torch fallback: {plain_line(name)} is {FALLBACKS[name]}" for name in load.linear_classes if name in FALLBACKS
    ]


def _warnings(
    phase: Phase, load: LoadFacts, conversion: Conversion | None, *, replaces_linears: bool
) -> tuple[str, ...]:
    warnings = [] if replaces_linears else _fallbacks(load)
    if _multiplies_in_full(phase, load, conversion):
        warnings.append(
            "not a low-bit product: the quantized weights are converted to 16 or 32 bits, and multiplied like any "
            "others"
        )
    return tuple(warnings)


def _multiplies_in_full(phase: Phase, load: LoadFacts, conversion: Conversion | None) -> bool:
    low_bit = (
        sum(kernel.calls for kernel in phase.kernels if category(kernel.name) == "quantized matmul") / phase.tokens
    )
    layers = sum(count for name, count in load.weight_classes.items() if not _is_in_full(name))
    if low_bit >= FEW * layers:
        return False
    if conversion or phase.share("dequantize") >= DEQUANTIZE_FROM:
        return True
    # A product that the compiler made may have the conversion inside, and an unknown kernel may be the product:
    # neither name tells.
    return not _may_be_fused(phase) and phase.share("other") <= UNKNOWN_LIMIT


def _may_be_fused(phase: Phase) -> bool:
    return any(
        category(kernel.name) == "matmul" and kernel.name.startswith(("triton_", "cpp_")) for kernel in phase.kernels
    )


def _is_in_full(weight_class: str) -> bool:
    return weight_class.endswith(("float16", "bfloat16", "float32"))


def _counted(classes: dict[str, int]) -> str:
    return ", ".join(
        f"{count} {plain_line(name)}" for name, count in sorted(classes.items(), key=lambda item: -item[1])
    )
