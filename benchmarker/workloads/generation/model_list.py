"""Table of the shipped model shapes: parameters, layers, and the quantizations and engines that support them.

The values are computed from models on torch's meta device, without memory for weights.
"""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING

from benchmarker.checkpoints.dummy import empty_model
from benchmarker.checkpoints.files import shape_names, shipped_shape
from benchmarker.core.errors import UnsupportedError
from benchmarker.core.formatting import gib, percent
from benchmarker.core.tables import Block, Column, Sheet
from benchmarker.engines.decoders.eager import EagerEngine
from benchmarker.engines.decoders.torch_engine import TorchEngine
from benchmarker.engines.registry import ENGINES
from benchmarker.quantization.coverage import LARGEST_UNQUANTIZED, quantizable_share
from benchmarker.quantization.registry import LOADERS
from benchmarker.workloads.generation.architecture import Architecture
from benchmarker.workloads.generation.read_architecture import describe

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NOTES = (
    "GiB: weights in 16 bits. Quantizations: share of weights that each quantizes; below 50 % a variant is invalid.",
    "Engines: those whose KV cache holds every layer; a run gives the reason if a kernel does not fit.",
)


def model_table() -> list[Block]:
    rows = [list_model(name) for name in shape_names()]
    numbers = ("parameters", "active", "GiB")
    columns = [Column(name, itemgetter(name), "right" if name in numbers else "left") for name in rows[0]]
    return [Sheet("", columns, rows, notes=NOTES)]


def billions(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e8 else f"{parameters / 1e6:.1f} M"


def list_model(name: str) -> dict[str, str]:
    folder = shipped_shape(name)
    assert folder is not None
    model = empty_model(folder)
    architecture = describe(model)
    return {
        "model": name,
        "parameters": billions(architecture.parameters),
        "active": billions(architecture.active_parameters) if architecture.experts else "all",
        "GiB": gib(2 * architecture.parameters).removesuffix(" GiB"),
        "layers": layer_words(architecture),
        "quantizations": quantization_words(model),
        "engines": ", ".join(engine_names(model)),
    }


def layer_words(architecture: Architecture) -> str:
    """Return the kinds of layers: `24 linear attention, 8 full attention; dense`."""
    mixers = Counter(" and ".join(layer.mixers) for layer in architecture.layers)
    parts = dict.fromkeys(layer.feed_forward for layer in architecture.layers)
    experts = architecture.experts
    words = {"MoE": f"{experts.per_token} of {experts.count} experts" if experts else "MoE"}
    counts = ", ".join(f"{count} {kind}" for kind, count in mixers.items())
    return f"{counts}; {' and '.join(words.get(part, part) for part in parts)}"


def quantization_words(model: PreTrainedModel) -> str:
    """Return the quantizations with the share of weights that they quantize: `fp16; int8 98 %; invalid: bnb4 3 %`."""
    shares: dict[str, list[str]] = {}
    for loader in LOADERS.values():
        if loader.has_low_bits and loader.stored_only is None:
            share = quantizable_share(loader, model)
            prefix = "" if 1 - share <= LARGEST_UNQUANTIZED else "invalid: "
            shares.setdefault(f"{prefix}{{}} {percent(share, places=0)}", []).append(loader.name)
    return "; ".join(["fp16", *(words.format(", ".join(names)) for words, names in shares.items())])


def engine_names(model: PreTrainedModel) -> list[str]:
    """Return the engines whose KV cache supports every layer of the model; external engines are left out."""
    from benchmarker.engines.decoders.static_cache_layers import supported_cache

    try:
        supported_cache(model, length=2**24)  # Longer than the sliding window of any model.
        has_static_cache = True
    except UnsupportedError:
        has_static_cache = False
    engines = [engine for engine in ENGINES.values() if isinstance(engine, TorchEngine)]
    return [engine.name for engine in engines if has_static_cache or isinstance(engine, EagerEngine)]
