"""`model.generate`, as users call it: a growing KV cache, one Python call per layer and token, nothing compiled.

`generate` hands every token to a streamer right after copying it to the host, so a clock reading in the streamer is
the moment at which the token is known. `generate` waits for the device once a token anyway, to see whether it is
done; the streamer adds one copy of a few bytes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.decoders.decoder import Decoded
from benchmarker.engines.decoders.kv_cache import KVForm, quantized_cache, stored_words
from benchmarker.engines.decoders.linear_kernels import linear_kernels
from benchmarker.engines.decoders.prefill_decode import CHUNK
from benchmarker.hardware.device import Device
from benchmarker.schema.engine_facts import EngineFacts

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import Cache, DynamicCache, PreTrainedModel


class TokenClock:
    """A streamer that does nothing but read the clock. The first call brings the prompt, each later one a token."""

    def __init__(self) -> None:
        self.times_ns: list[int] = []

    def put(self, value: Tensor) -> None:  # noqa: ARG002 - the value is already on the host; its time is all we want
        self.times_ns.append(time.perf_counter_ns())

    def end(self) -> None: ...


class TokenQueue:
    """A streamer that hands each token to another thread."""

    def __init__(self) -> None:
        self.items: SimpleQueue[list[int] | BaseException | None] = SimpleQueue()
        self.abandoned = False
        """Whether nobody takes tokens any more."""
        self._is_prompt = True

    def put(self, value: Tensor) -> None:
        """Called by `generate` with the prompt first, then with each token."""
        if not self._is_prompt:
            self.items.put(value.flatten().tolist())
        self._is_prompt = False

    def end(self) -> None: ...

    def is_abandoned(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:  # noqa: ARG002
        """A stopping criterion of `generate`: [batch] of booleans."""
        return input_ids.new_full((len(input_ids),), self.abandoned).bool()

    def pieces(self, stop: frozenset[int]) -> Iterator[list[int]]:
        """The new tokens in pieces as `generate` hands them over, without those of `stop`.

        What `generate` raises is raised here.
        """
        while (item := self.items.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            tokens = [token for token in item if token not in stop]
            if tokens:
                yield tokens


class ForcedTokens:
    """A logits processor that keeps what `generate` makes of each position, and makes it take the given token."""

    def __init__(self, ids: Tensor) -> None:
        """Args:
        ids: [positions].
        """
        self._ids = ids
        self.log_probabilities: list[Tensor] = []
        """float32, [vocabulary] each, on the CPU."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        import torch

        self.log_probabilities.append(scores[0].float().log_softmax(dim=-1).cpu())
        following = self._ids[min(input_ids.shape[1], len(self._ids) - 1)]
        return torch.full_like(scores, float("-inf")).index_fill(1, following.view(1), 0.0)


class EagerDecoder:
    """`model.generate` with a KV cache that grows."""

    def __init__(self, model: PreTrainedModel, device: Device, *, kv_cache: KVForm | None = None) -> None:
        """Wrap a model.

        Args:
            kv_cache: How keys and values are stored; None in the type of the activations.
        """
        self._model = model
        self.kv_cache = kv_cache
        if kv_cache is not None:
            # Whether this model can have it is known before anything is timed.
            quantized_cache(model, kv_cache)
        self._device = device
        self._cache: DynamicCache | None = None
        self._context: Tensor | None = None
        self._last: tuple[Tensor, Tensor | None] | None = None

    def generate(self, prompt: Tensor, new_tokens: int, *, context: Tensor | None = None) -> Decoded:
        """See TokenSource.generate."""
        import torch

        arguments, whole = greedy(new_tokens) | self._cache_argument(context), prompt
        if context is not None:
            whole = torch.cat([context, prompt], dim=1)
        mask = torch.ones_like(whole)
        clock = TokenClock()
        self._device.synchronize()
        start_ns = time.perf_counter_ns()
        output = self._model.generate(whole, attention_mask=mask, streamer=clock, **arguments)  # type: ignore[operator]
        self._device.synchronize()
        end_ns = time.perf_counter_ns()
        self._last = prompt, context
        tokens_ns = clock.times_ns[1:]
        return Decoded(
            tokens=output[:, whole.shape[1] :].cpu(),
            start_ns=start_ns,
            first_ns=tokens_ns[0],
            last_ns=tokens_ns[-1],
            end_ns=end_ns,
        )

    def stream(self, prompt: Tensor, new_tokens: int, stop: frozenset[int]) -> Iterator[list[int]]:
        """See Decoder.stream: `generate` runs in a thread of its own and hands each token over."""
        import torch

        streamer = TokenQueue()
        arguments = greedy(new_tokens) | self._cache_argument() | {"eos_token_id": sorted(stop) or None}

        def run() -> None:
            try:
                self._model.generate(  # type: ignore[operator]
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    streamer=streamer,
                    stopping_criteria=[streamer.is_abandoned],
                    **arguments,
                )
            except BaseException as error:  # noqa: BLE001
                # Raised again where the tokens are taken.
                streamer.items.put(error)
            else:
                streamer.items.put(None)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield from streamer.pieces(stop)
        finally:
            streamer.abandoned = True
            thread.join()

    def score(self, ids: Tensor, *, prompt_tokens: int = 1) -> Tensor:
        """See Decoder.score: `generate` itself, made to take the given tokens."""
        import torch

        forced = ForcedTokens(ids[0])
        self._model.generate(  # type: ignore[operator]
            ids[:, :prompt_tokens],
            attention_mask=torch.ones_like(ids[:, :prompt_tokens]),
            logits_processor=[forced],
            **greedy(ids.shape[1] - prompt_tokens + 1),
            **self._cache_argument(),
        )
        return torch.stack(forced.log_probabilities)

    def _cache_argument(self, context: Tensor | None = None) -> dict[str, Any]:
        """The cache as an argument of `generate`, with the context in it; nothing where `generate` makes its own."""
        if self.kv_cache is not None:
            cache = quantized_cache(self._model, self.kv_cache)
            if context is not None:
                # What is packed cannot be cut off again: each generation begins with a cache of its own.
                self._fill(cache, context)
            return {"past_key_values": cache}
        return {} if context is None else {"past_key_values": self._filled(context)}

    def _fill(self, cache: Cache, context: Tensor) -> None:
        import torch

        with torch.no_grad():
            for chunk in context.split(CHUNK, dim=1):
                self._model(input_ids=chunk, past_key_values=cache, use_cache=True, logits_to_keep=1)

    def _filled(self, context: Tensor) -> DynamicCache:
        """A cache that holds the context and nothing else: the last one, with what came after it cut off."""
        from transformers import DynamicCache

        if self._cache is None or self._context is not context:
            self._cache = None  # gives the memory back before more is taken
            self._cache = DynamicCache(config=self._model.config)
            self._context = context
            self._fill(self._cache, context)
        parts: list[Any] = self._cache.layers
        for layer in parts:
            if type(layer).__name__ != "DynamicLayer":
                raise UnsupportedError(f"a depth in a cache of {type(layer).__name__} is not written yet")
            layer.keys = layer.keys[:, :, : context.shape[1]]
            layer.values = layer.values[:, :, : context.shape[1]]
        return self._cache

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Nothing can recompile here."""
        yield

    def check(self) -> None:
        """`generate` is what it says."""

    graph_pool_bytes = None

    def step_facts(self) -> None:
        """Every call of `generate` begins anew."""

    def kernels_per_token(self, count: Callable[[Callable[[], object]], int]) -> float | None:
        """See TokenSource.kernels_per_token: what two more tokens cost, so that the prefill drops out."""
        if self._last is None:
            return None
        prompt, context = self._last

        def kernels(tokens: int) -> int:
            return count(lambda: self.generate(prompt, tokens, context=context))

        return (kernels(4) - kernels(2)) / 2

    def facts(self) -> EngineFacts:
        """Nothing is set up, and every token is read as it is made."""
        return EngineFacts(
            name="eager",
            tokens_read="each",
            kv_cache="quantized" if self.kv_cache else "dynamic",
            kv_cache_stored=stored_words(self.kv_cache) if self.kv_cache else None,
            kernels_used=linear_kernels(self._model, compiled=False),
        )


def greedy(new_tokens: int) -> dict[str, Any]:
    """Arguments of `generate` for exactly that many greedy tokens.

    Qwen3's own generation config samples (temperature 0.6, top-k 20): a sort of 151,936 logits a token, and lengths
    that differ from run to run. As an argument, `eos_token_id=None` switches the end-of-text token off; in a
    GenerationConfig it would fall back to the model's own.
    """
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
        # A static cache would switch on compilation behind our back; the row says eager.
        "disable_compile": True,
    }
