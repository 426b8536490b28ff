"""Quantized KV caches of transformers: `--engine-option kv_cache=fp8|int8|int4`.

Every step unpacks the whole cache before attention. This saves memory in a long context and costs time. These caches
grow, so that only `generate` (`eager`) has the option. Importing this file needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from benchmarker.checkpoints.read_model import head_dim, key_heads
from benchmarker.core.errors import UnsupportedError, install_hint, installed_version
from benchmarker.quantization.base import Options

if TYPE_CHECKING:
    from transformers import PreTrainedModel, QuantizedCache

KVForm = Literal["fp8", "int8", "int4"]
BITS: dict[KVForm, int] = {"fp8": 8, "int8": 8, "int4": 4}
GROUP = 64
"""Values that share a scale and a zero point in HQQ's caches: transformers' default."""
UNPACKED = 127
"""Maximum number of newest tokens that HQQ's caches leave unpacked: transformers packs them in blocks of 128."""


class EagerOptions(Options):
    """Options of the engine `eager`."""

    kv_cache: KVForm | None = None
    """Quantization of keys and values; null keeps the activations' type. fp8: one scale per layer, fixed by the prompt.
    int8, int4: HQQ's, in groups of 64, with up to 127 of the newest tokens unpacked; need the library hqq. Every step
    unpacks the whole cache: the option saves memory in a long context, and no time."""


def selected_form(options: Options) -> KVForm | None:
    return options.kv_cache if isinstance(options, EagerOptions) else None


def missing_library(options: Options) -> str | None:
    """Return the missing library and how to install it; None if nothing is missing."""
    kv_form = selected_form(options)
    if kv_form is None:
        return None
    if kv_form != "fp8":
        is_there = installed_version("hqq") is not None
        return (
            None if is_there else f"kv_cache={kv_form}: the library 'hqq' is not installed; {install_hint('kv-cache')}"
        )
    from transformers import cache_utils

    if hasattr(cache_utils, "Fp8QuantizedLayer"):
        return None
    return f"kv_cache=fp8: transformers {installed_version('transformers')} does not have it; 5.23 does"


def static_cache_refusal(engine: str, options: Iterable[str]) -> str | None:
    """Return why an engine with a fixed cache has no option `kv_cache`; None if the option is not set."""
    if engine == "eager" or "kv_cache" not in options:
        return None
    return (
        f"kv_cache: the quantized KV caches of transformers grow, and the {engine} engine's lies at fixed addresses; "
        "use --engine eager"
    )


def quantized_cache(model: PreTrainedModel, kv_form: KVForm) -> QuantizedCache:
    """Return an empty cache; raise UnsupportedError if the model cannot have it."""
    from transformers.cache_utils import QuantizedCache

    config = model.config.get_text_config(decoder=True)
    others = set(getattr(config, "layer_types", None) or []) - {"full_attention"}
    if others:
        raise UnsupportedError(f"kv_cache={kv_form}: transformers packs full attention alone, not {min(others)}")
    heads, numbers = key_heads(config), head_dim(config)
    if kv_form != "fp8" and heads * numbers % GROUP:
        raise UnsupportedError(
            f"kv_cache={kv_form}: groups of {GROUP} do not divide {heads} key heads of {numbers}; use kv_cache=fp8"
        )
    if kv_form == "fp8":
        return QuantizedCache("fp8", config=model.config)
    return QuantizedCache("hqq", config=model.config, nbits=BITS[kv_form], q_group_size=GROUP)


def value_bytes(kv_form: KVForm, element_bytes: int) -> float:
    """Return the bytes of a stored value, with its share of scale and zero point. HQQ's unpacked tokens take more."""
    scales = 0.0 if kv_form == "fp8" else 2 * element_bytes / GROUP
    return BITS[kv_form] / 8 + scales


def stored_words(kv_form: KVForm) -> str:
    """Describe the storage of keys and values, for the record."""
    if kv_form == "fp8":
        return "fp8 by transformers, a scale a layer, fixed by the prompt; every step unpacks all of it"
    return (
        f"{kv_form} by HQQ in groups of {GROUP}, up to {UNPACKED} of the newest tokens as they are; every step unpacks "
        "all of it"
    )
