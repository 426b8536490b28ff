"""`model.generate`, as users call it: a growing KV cache, one Python call per layer and token, nothing compiled.

`generate` copies every token to the host and passes it to a streamer, which reads the clock. The measurement adds no
synchronization: `generate` waits for the device at every token anyway, to check whether the text has ended.

Only this engine has the option `kv_cache`: the quantized KV caches of transformers grow with the text, while the other
engines need a cache at fixed addresses. Importing this file needs no torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

from benchmarker.checkpoints.base import Checkpoint
from benchmarker.checkpoints.read_model import head_dim, key_heads, model_errors
from benchmarker.core.errors import install_hint, installed_version
from benchmarker.engines.base import Form, UnsupportedError
from benchmarker.engines.decoders.torch_engine import (
    CHUNK,
    Batch,
    TorchDecoder,
    TorchEngine,
    experts_implementation,
    linear_kernels,
)
from benchmarker.hardware.device import Device
from benchmarker.measure.clock import Generation, TokenClock, time_streamed
from benchmarker.quantization.base import Options, has_int8_head
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.model import EngineFacts

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import Cache, DynamicCache, PreTrainedModel, QuantizedCache

KVForm = Literal["fp8", "int8", "int4"]
BITS: dict[KVForm, int] = {"fp8": 8, "int8": 8, "int4": 4}
GROUP = 64  # Values that share a scale and a zero point in HQQ's caches.
UNPACKED = 127  # Maximum number of newest tokens that HQQ's caches keep unquantized.


class EagerOptions(Options):
    kv_cache: KVForm | None = None
    """Quantization of the KV cache; null keeps the activations' type. fp8: one scale per layer, computed from the
    prompt. int8, int4: by the library hqq in groups of 64; up to 127 of the newest tokens stay unquantized. Every step
    dequantizes the whole cache: the option saves memory in a long context, but no time."""


class EagerDecoder(TorchDecoder):
    def __init__(self, model: PreTrainedModel, device: Device, *, kv_cache: KVForm | None = None) -> None:
        super().__init__(model, device)
        self.kv_cache: KVForm | None = kv_cache
        # Raises an error before anything is timed if the model does not support the cache.
        if kv_cache is None:
            growing_cache(model)
        else:
            quantized_cache(model, kv_cache)
            self.kv_value_bytes = value_bytes(kv_cache, model.dtype.itemsize)
        self._cache: DynamicCache | None = None
        self._cached_context: Tensor | None = None
        self._last: tuple[Tensor, Tensor | None] | None = None

    def generate(self, prompt_ids: Batch, new_tokens: int, *, context: Batch | None = None) -> Generation:
        import torch

        prompt, context = self.tensor(prompt_ids), self.context_tensor(context)
        arguments, ids = greedy_arguments(new_tokens) | self._cache_argument(context), prompt
        if context is not None:
            ids = torch.cat([context, prompt], dim=1)
        mask = torch.ones_like(ids)

        def call(clock: TokenClock) -> Tensor:
            output: Tensor = self.model.generate(ids, attention_mask=mask, streamer=clock, **arguments)  # type: ignore[operator]
            return output

        generation = time_streamed(call, self.device, prompt_tokens=ids.shape[1])
        self._last = prompt, context
        return generation

    def stream(self, prompt: Tensor, new_tokens: int, stop: frozenset[int]) -> Iterator[list[int]]:
        """Yield tokens as soon as `model.generate`, in a second thread, has made them."""
        import torch

        streamer = TokenQueue()
        arguments = greedy_arguments(new_tokens) | self._cache_argument() | {"eos_token_id": sorted(stop) or None}

        def run() -> None:
            try:
                self.model.generate(  # type: ignore[operator]
                    prompt, attention_mask=torch.ones_like(prompt), streamer=streamer, **arguments
                )
            except BaseException as error:  # noqa: BLE001
                # The thread that reads the tokens raises the error again.
                streamer.items.put(error)
            else:
                streamer.items.put(None)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            while (item := streamer.items.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                if tokens := [token for token in item if token not in stop]:
                    yield tokens
        finally:
            streamer.abandoned = True
            thread.join()

    def log_probabilities(self, ids: Tensor, *, prompt_tokens: int = 1) -> Tensor:
        import torch

        rows: list[Tensor] = []

        def take_own_token(before: Tensor, scores: Tensor) -> Tensor:
            rows.append(scores[0].float().log_softmax(dim=-1).cpu())
            following = ids[0, min(before.shape[1], ids.shape[1] - 1)]
            return torch.full_like(scores, float("-inf")).index_fill(1, following.view(1), 0.0)

        self.model.generate(  # type: ignore[operator]
            ids[:, :prompt_tokens],
            attention_mask=torch.ones_like(ids[:, :prompt_tokens]),
            logits_processor=[take_own_token],
            **greedy_arguments(ids.shape[1] - prompt_tokens + 1),
            **self._cache_argument(),
        )
        return torch.stack(rows)

    def _cache_argument(self, context: Tensor | None = None) -> dict[str, Any]:
        if self.kv_cache is not None:
            cache = quantized_cache(self.model, self.kv_cache)
            if context is not None:
                # Quantized tokens cannot be removed from the cache, so each generation fills a new one.
                self._fill(cache, context)
            return {"past_key_values": cache}
        return {} if context is None else {"past_key_values": self._filled(context)}

    def _fill(self, cache: Cache, context: Tensor) -> None:
        import torch

        with torch.no_grad():
            for chunk in context.split(CHUNK, dim=1):
                self.model(input_ids=chunk, past_key_values=cache, use_cache=True, logits_to_keep=1)

    def _filled(self, context: Tensor) -> DynamicCache:
        if self._cache is None or self._cached_context is not context:
            self._cache = None  # frees its memory before the new one is allocated
            cache = growing_cache(self.model)
            for kind in (type(layer).__name__ for layer in cache.layers):
                if kind != "DynamicLayer":
                    raise UnsupportedError(f"--depth takes layers of full attention alone, not a {kind}; leave it out")
            self._fill(cache, context)
            self._cache, self._cached_context = cache, context
        parts: list[Any] = self._cache.layers
        for layer in parts:
            layer.keys = layer.keys[:, :, : context.shape[1]]
            layer.values = layer.values[:, :, : context.shape[1]]
        return self._cache

    def kernels_per_token(self, count: Callable[[Callable[[], object]], int]) -> float | None:
        """Return (kernels for 4 new tokens - kernels for 2) / 2, in which the kernels of prefill cancel out."""
        if self._last is None:
            return None
        prompt, context = self._last

        def kernels(tokens: int) -> int:
            return count(lambda: self.generate(prompt, tokens, context=context))

        return (kernels(4) - kernels(2)) / 2

    def facts(self) -> EngineFacts:
        stored = f"{self.kv_cache} by HQQ in groups of {GROUP}, up to {UNPACKED} of the newest tokens as they are"
        if self.kv_cache == "fp8":
            stored = "fp8 by transformers, a scale a layer, fixed by the prompt"
        experts = experts_implementation(self.model)
        if experts == "grouped_mm" and self.device.kind != "cpu":
            experts = "batched_mm"  # `generate` replaces grouped_mm in decode steps.
        return EngineFacts(
            name="eager",
            tokens_read="each",
            kv_cache="quantized" if self.kv_cache else "dynamic",
            kv_cache_stored=f"{stored}; every step unpacks all of it" if self.kv_cache else None,
            experts=experts,
            kernels_used=linear_kernels(self.model, compiled=False),
        )


class TokenQueue:
    """Streamer that passes each token to another thread."""

    def __init__(self) -> None:
        self.items: SimpleQueue[list[int] | BaseException | None] = SimpleQueue()
        self.abandoned = False
        self._is_prompt = True

    def put(self, value: Tensor) -> None:
        if self.abandoned:
            raise GeneratorExit
        if not self._is_prompt:
            self.items.put(value.flatten().tolist())
        self._is_prompt = False

    def end(self) -> None: ...


def greedy_arguments(new_tokens: int) -> dict[str, Any]:
    """Return arguments that make `generate` return exactly `new_tokens` greedy tokens. As an argument,
    `eos_token_id=None` disables the end-of-text token; in a GenerationConfig, None would select the model's token."""
    return {
        "max_new_tokens": new_tokens,
        "eos_token_id": None,
        "pad_token_id": 0,
        "do_sample": False,
        "temperature": None,
        "top_p": None,
        "top_k": None,
        "num_beams": 1,
        "use_cache": True,
        # A static cache would make transformers compile the model; this engine is eager.
        "disable_compile": True,
    }


def missing_library(kv_form: KVForm | None) -> str | None:
    if kv_form in ("int8", "int4") and installed_version("hqq") is None:
        return f"kv_cache={kv_form}: the library 'hqq' is not installed; {install_hint('kv-cache')}"
    if kv_form == "fp8":
        from transformers import cache_utils

        if not hasattr(cache_utils, "Fp8QuantizedLayer"):
            return f"kv_cache=fp8: transformers {installed_version('transformers')} does not have it; 5.23 does"
    return None


def static_cache_refusal(engine: str, options: Iterable[str]) -> str | None:
    """Return why the engine does not support `kv_cache`; None if it does, or if `kv_cache` is not in `options`."""
    if engine == "eager" or "kv_cache" not in options:
        return None
    return (
        f"kv_cache: the quantized KV caches of transformers grow, and the {engine} engine's lies at fixed addresses; "
        "use --engine eager"
    )


def growing_cache(model: PreTrainedModel) -> DynamicCache:
    """Return an empty cache. Raises ModelError if transformers cannot make a cache for the model's config."""
    from transformers import DynamicCache

    with model_errors("transformers cannot make the KV cache of this config"):
        return DynamicCache(config=model.config)


def quantized_cache(model: PreTrainedModel, kv_form: KVForm) -> QuantizedCache:
    """Return an empty quantized cache. Raises UnsupportedError if transformers cannot quantize this model's cache."""
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
    """Return the bytes per quantized value, scale and zero point included: 0.5625 for int4 in a float16 model."""
    scales = 0.0 if kv_form == "fp8" else 2 * element_bytes / GROUP
    return BITS[kv_form] / 8 + scales


class EagerEngine(TorchEngine):
    def why_not_split(self, form: Form) -> str | None:
        if _kv_form(form):
            return "a quantized KV cache over several GPUs was never tried; leave kv_cache out"
        has_head = has_int8_head(form.options)
        if form.split in LOADERS[form.quant].splits and not (form.split == "tensors" and has_head):
            return None
        if form.split == "tensors":
            unable = "lm_head=int8" if has_head else form.quant
            return f"transformers divides 16-bit weights, not {unable}; use --quant fp16 of an unquantized model"
        able = ", ".join(name for name, loader in LOADERS.items() if "layers" in loader.splits)
        return f"{form.quant} by layers over several GPUs was never tried; it is there for {able}"

    def why_not_taken(self, form: Form, checkpoint: Checkpoint) -> str | None:
        return super().why_not_taken(form, checkpoint) or missing_library(_kv_form(form))


def _kv_form(form: Form) -> KVForm | None:
    return form.engine_options.kv_cache if isinstance(form.engine_options, EagerOptions) else None
