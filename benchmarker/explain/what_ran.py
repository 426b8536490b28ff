"""What really ran: the name of a variant is a promise, its kernels are what was kept of it."""

from __future__ import annotations

from benchmarker.core.numbers import percent
from benchmarker.core.tables import escaped
from benchmarker.explain.numbers import code
from benchmarker.explain.values import Conversion, Phase, Proof
from benchmarker.profiling.categories import UNKNOWN_LIMIT, category
from benchmarker.schema.model_facts import LoadFacts

FALLBACKS = {
    "TorchLinear": "gptqmodel's for where no better one runs: it unpacks by torch operators and multiplies in 16 bits",
    "TorchFusedLinear": "gptqmodel's for where no better one runs",
}
"""Linear classes that run everywhere and are meant for where nothing better does."""
DEQUANTIZE_FROM = 0.15
"""Of the kernel time: less is not how most of the weights were multiplied."""
SHOWN_KERNELS = 3
FEW = 1 / 3
"""Fewer low-bit products than this for each quantized layer: most layers were multiplied in another way. Up to five of
seven may have been one product."""


def proof_of(phase: Phase, load: LoadFacts | None, conversion: Conversion | None, *, own: bool) -> Proof:
    """What the loaded layers and the observed kernels say.

    Args:
        own: Whether products of a decode step are made by another kernel than the layers' own.
    """
    lines = _loaded(load) if load else []
    products = [one for one in phase.kernels if category(one.name) in ("matmul", "quantized matmul")][:SHOWN_KERNELS]
    if products:
        lines.append(f"matrix products by {', '.join(code(one.name) for one in products)}")
    return Proof(tuple(lines), _warnings(phase, load, conversion, own=own) if load and load.quantized_fraction else ())


def loaded_proof(load: LoadFacts, runtime: str) -> Proof:
    """What the loaded layers say by themselves."""
    # A compiled step may multiply by a kernel of its own.
    return Proof(tuple(_loaded(load)), tuple(_fallbacks(load)) if runtime != "compile" else ())


def _loaded(load: LoadFacts) -> list[str]:
    return [
        f"{percent(load.quantized_fraction)} of the parameters quantized, {load.bits_per_weight:.2f} bits a weight "
        f"with scales and what is not quantized; lm_head {escaped(load.lm_head_dtype)}",
        f"linear layers: {_counted(load.linear_classes)}; weights: {_counted(load.weight_classes)}",
    ]


def _fallbacks(load: LoadFacts) -> list[str]:
    return [
        f"torch fallback: {escaped(name)} is {FALLBACKS[name]}" for name in load.linear_classes if name in FALLBACKS
    ]


def _warnings(phase: Phase, load: LoadFacts, conversion: Conversion | None, *, own: bool) -> tuple[str, ...]:
    said = [] if own else _fallbacks(load)
    if _multiplies_in_full(phase, load, conversion):
        said.append(
            "not a low-bit product: the quantized weights are converted to 16 or 32 bits, and multiplied like any "
            "others"
        )
    return tuple(said)


def _multiplies_in_full(phase: Phase, load: LoadFacts, conversion: Conversion | None) -> bool:
    """Whether most quantized layers were dequantized first, and then multiplied like any other."""
    low_bit = sum(one.calls for one in phase.kernels if category(one.name) == "quantized matmul") / phase.tokens
    layers = sum(count for name, count in load.weight_classes.items() if not _is_in_full(name))
    if low_bit >= FEW * layers:
        return False
    if conversion or phase.share("dequantize") >= DEQUANTIZE_FROM:
        return True
    # A product that the compiler made may have the conversion inside, and an unknown kernel may be the product:
    # neither name tells.
    return not _may_be_fused(phase) and phase.share("other") <= UNKNOWN_LIMIT


def _may_be_fused(phase: Phase) -> bool:
    return any(category(one.name) == "matmul" and one.name.startswith(("triton_", "cpp_")) for one in phase.kernels)


def _is_in_full(weight_class: str) -> bool:
    return weight_class.endswith(("float16", "bfloat16", "float32"))


def _counted(classes: dict[str, int]) -> str:
    return ", ".join(f"{count} {escaped(name)}" for name, count in sorted(classes.items(), key=lambda item: -item[1]))
