"""A KV cache in fewer bits: `--engine-option kv_cache=fp8|int8|int4`, by the quantized caches of transformers.

What lies in the cache is packed; every step unpacks all of it, and attends to that. So it saves memory where much is in
the cache, and costs time. The cache of these classes grows, so that it is an option of `generate` (`eager`) alone.
Importing this file needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from benchmarker.checkpoints.model_config import head_dim, key_heads
from benchmarker.core.errors import UnsupportedError
from benchmarker.core.packages import install_hint, installed_version
from benchmarker.quantization.base import Options

if TYPE_CHECKING:
    from transformers import PreTrainedModel, QuantizedCache

KVForm = Literal["fp8", "int8", "int4"]
BITS: dict[KVForm, int] = {"fp8": 8, "int8": 8, "int4": 4}
GROUP = 64
"""Values that share a scale and a zero point in HQQ's forms: transformers' default."""
UNPACKED = 127
"""Most of the newest tokens that HQQ's forms leave as they are: transformers packs them by the 128."""
ELSEWHERE = (
    "kv_cache: the quantized KV caches of transformers grow, and the {engine} engine's lies at fixed addresses; "
    "use --engine eager"
)


class EagerOptions(Options):
    """eager's own."""

    kv_cache: KVForm | None = None
    """Keys and values in fewer bits; null leaves them in the activations' type. fp8: a scale a layer, fixed by the
    prompt. int8, int4: HQQ's, in groups of 64, up to 127 of the newest tokens left as they are; need the library hqq.
    Every step unpacks all of it: it saves memory at depth, and no time."""


def asked(options: Options) -> KVForm | None:
    """The form that an engine's options ask for."""
    return options.kv_cache if isinstance(options, EagerOptions) else None


def missing(options: Options) -> str | None:
    """The library that the asked form lacks here, and what to do; None where nothing is missing."""
    kv_form = asked(options)
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


def elsewhere(engine: str, options: Iterable[str]) -> str | None:
    """Why an engine with a fixed cache has no such option; None for `eager`, and where it was not asked for."""
    return ELSEWHERE.format(engine=engine) if engine != "eager" and "kv_cache" in options else None


def quantized_cache(model: PreTrainedModel, kv_form: KVForm) -> QuantizedCache:
    """An empty cache.

    Raises:
        UnsupportedError: Not for this model.
    """
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
    """Bytes of a stored value with its share of the scale and the zero point. The newest tokens, which HQQ's forms
    leave as they are, take more.

    Args:
        element_bytes: Of a value in the activations' type, which scales and zero points have.
    """
    scales = 0.0 if kv_form == "fp8" else 2 * element_bytes / GROUP
    return BITS[kv_form] / 8 + scales


def stored_words(kv_form: KVForm) -> str:
    """How keys and values are stored, for the record."""
    if kv_form == "fp8":
        return "fp8 by transformers, a scale a layer, fixed by the prompt; every step unpacks all of it"
    return (
        f"{kv_form} by HQQ in groups of {GROUP}, up to {UNPACKED} of the newest tokens as they are; every step unpacks "
        "all of it"
    )
