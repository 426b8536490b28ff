"""The generation loop of the runtimes with a fixed cache: everything is made ready at a new shape, then only repeated.

A step takes its token from a fixed place and leaves the next one there, so that it can be run, compiled or replayed
without a word from the host. New tokens are collected on the device and read once, after the clock has stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from benchmarker.engines.base import NEEDS_GPU, UnsupportedError
from benchmarker.engines.capture.graph_capture import Capture
from benchmarker.engines.decoders.attention import attention_backend
from benchmarker.engines.decoders.cache_shape import Latest, Shape
from benchmarker.engines.decoders.decoder import Decoded
from benchmarker.engines.decoders.linear_kernels import linear_kernels
from benchmarker.engines.decoders.prefill_decode import (
    CHUNK,
    cache_length,
    decode_step,
    fill,
    greedy,
    log_probabilities,
    prefill_logits,
)
from benchmarker.engines.decoders.static_cache import StaticKVCache
from benchmarker.engines.decoders.token_stream import TokenStream
from benchmarker.hardware.device import Device
from benchmarker.schema.engine_facts import EngineFacts, StepFacts
from benchmarker.schema.kernels_used import KernelUse, read_attention

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


class StaticCacheDecoder:
    """Prefill as the model does it, and a decode step over a fixed cache, captured where there is a `capture`."""

    name: str
    native_attention = False
    """Whether this program's own attention may be used."""

    def __init__(self, model: PreTrainedModel, device: Device, *, capture: Capture | None) -> None:
        self._model = model
        self._device = device
        self._capture = capture
        self._shape: Shape | None = None
        self._setup_s: float | None = None
        self._captured = 0
        self._replays = 0
        self._is_timed = False

    def generate(self, prompt: Tensor, new_tokens: int, *, context: Tensor | None = None) -> Decoded:
        """See TokenSource.generate. The first call at a new shape sets it up."""
        import torch

        self._check_device()
        called_ns = time.perf_counter_ns()
        depth = 0 if context is None else context.shape[1]
        with torch.no_grad(), self._explained():
            prompt_tokens = prompt.shape[1]
            room = max(prompt_tokens + new_tokens, self.padded_length(prompt_tokens))
            shape, is_new = self._prepare(len(prompt), cache_length(depth + room))
            is_new = self._prepare_prefill(shape, prompt_tokens) or is_new
            prepared_ns = time.perf_counter_ns()
            self._fill(shape, context)
            generation = self._generate(shape, prompt, new_tokens, depth)
        if is_new:
            # A depth that is put into the cache in between is no part of setting up.
            setup_ns = prepared_ns - called_ns + generation.end_ns - generation.start_ns
            self._setup_s = max(self._setup_s or 0.0, setup_ns / 1e9)
        return generation

    def _generate(self, shape: Shape, prompt: Tensor, new_tokens: int, depth: int) -> Decoded:
        cache, step = shape.cache, shape.step
        cache.go_to(depth)
        self._device.synchronize()
        start_ns = time.perf_counter_ns()
        self._prefill(shape, prompt)
        cache.begin_decoding()
        self._device.synchronize()
        first_ns = time.perf_counter_ns()
        # Prefill already made the first token, so N tokens are N - 1 steps.
        for _ in range(new_tokens - 1):
            step()
        self._device.synchronize()
        end_ns = time.perf_counter_ns()
        if self._is_timed and shape.captured:
            self._replays += new_tokens - 1
        first = depth + prompt.shape[1]
        tokens = shape.tokens[:, first : first + new_tokens].cpu()
        return Decoded(tokens=tokens, start_ns=start_ns, first_ns=first_ns, last_ns=end_ns, end_ns=end_ns)

    def stream(self, prompt: Tensor, new_tokens: int, stop: frozenset[int]) -> Iterator[list[int]]:
        """See Decoder.stream."""
        self._check_device()
        shape = self._begin(prompt, new_tokens)
        runs_ahead = self._device.kind != "cpu"
        stream = TokenStream(shape, prompt.shape[1], new_tokens, runs_ahead=runs_ahead, explained=self._explained)
        yield from stream.pieces(stop)

    def _begin(self, prompt: Tensor, new_tokens: int) -> Shape:
        """A shape with the prompt in its cache and the first new token made."""
        import torch

        with torch.no_grad(), self._explained():
            shape = self._with_room(prompt.shape[1] + new_tokens)
            shape.cache.go_to(0)
            for chunk in prompt.split(CHUNK, dim=1):
                self._prefill(shape, chunk, shared=True)
            shape.cache.begin_decoding()
        return shape

    def _with_room(self, tokens: int) -> Shape:
        """A shape of one sequence with room for so many tokens: the one that is ready, or one a good deal larger than
        asked, so that texts of many lengths set up few of them."""
        if self._shape is None or len(self._shape.tokens) > 1 or self._shape.tokens.shape[1] < tokens:
            positions = getattr(self._model.config.get_text_config(decoder=True), "max_position_embeddings", tokens)
            self._prepare(1, max(cache_length(tokens), min(1 << (tokens - 1).bit_length(), positions)))
        assert self._shape is not None
        self._shape.context = None
        return self._shape

    def score(self, ids: Tensor, *, prompt_tokens: int = 1) -> Tensor:
        """See Decoder.score. The shape that ran last is used where it has room: all of its sequences are the text."""
        import torch

        self._check_device()
        with torch.no_grad(), self._explained():
            shape = self._shape if self._shape and self._shape.tokens.shape[1] >= ids.shape[1] else None
            shape = shape or self._with_room(ids.shape[1])
            shape.context = None
            shape.cache.go_to(0)
            prompt = ids[:, :prompt_tokens].expand(len(shape.tokens), -1)
            rows = [log_probabilities(self._prefill(shape, prompt))]
            shape.cache.begin_decoding()
            for position in range(prompt_tokens, ids.shape[1]):
                shape.token.copy_(ids[:, position : position + 1].expand_as(shape.token))
                shape.step()
                assert shape.latest.logits is not None
                rows.append(log_probabilities(shape.latest.logits))
        return torch.stack(rows)

    def _check_device(self) -> None:
        """Refuse a device that this engine cannot run on.

        Raises:
            UnsupportedError: With the engine that can.
        """
        if self._capture is None and self.name in NEEDS_GPU:
            raise UnsupportedError(NEEDS_GPU[self.name])

    def _prepare(self, batch: int, length: int) -> tuple[Shape, bool]:
        """What belongs to this shape, and whether it was made just now. One shape is kept at a time."""
        import torch

        shape = self._shape
        if shape and shape.tokens.shape == (batch, length):
            return shape, False
        self._shape = shape = None  # gives the memory back before more is taken
        self._forget()
        self._device.release()
        cache = StaticKVCache(self._model, batch=batch, length=length)
        device = cache.position.on_device.device
        token = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        tokens = torch.zeros(batch, length, dtype=torch.int64, device=device)

        latest = Latest()

        def step() -> None:
            following, latest.logits = self._decode(token, cache)
            token.copy_(following)
            tokens.index_copy_(1, cache.position.on_device.view(1), token)

        cache.begin_decoding()
        captured = self._capture(step) if self._capture else None
        self._captured += captured is not None
        replay = captured.replay if captured else step
        self._shape = Shape(cache, token, tokens, step, replay, captured, latest=latest)
        return self._shape, True

    def padded_length(self, prompt_tokens: int) -> int:
        """Positions that a prefill of so many tokens writes to."""
        return prompt_tokens

    def _prepare_prefill(self, shape: Shape, prompt_tokens: int) -> bool:
        """Make ready what a prefill of so many tokens needs, and say whether there was anything to do."""
        del shape, prompt_tokens
        return False

    def _prefill(self, shape: Shape, prompt: Tensor, *, shared: bool = False) -> Tensor:
        """Put the prompt into the cache, at its position, and the first new token where the next step takes it from.

        Args:
            prompt: [batch, prompt_tokens].
            shared: Whether prompts of other lengths will follow.

        Returns:
            The logits after the prompt's last token, [batch, 1, vocabulary].
        """
        del shared
        logits = prefill_logits(self._model, prompt, shape.cache)
        shape.token.copy_(greedy(logits))
        shape.tokens.index_copy_(1, shape.cache.position.on_device.view(1), shape.token)
        return logits

    def _decode(self, token: Tensor, cache: StaticKVCache) -> tuple[Tensor, Tensor]:
        """One decode step; see `decode_step`."""
        return decode_step(self._model, token, cache)

    def _forget(self) -> None:
        """Drop what belongs to the last shape."""

    def _fill(self, shape: Shape, context: Tensor | None) -> None:
        """Put the depth into the cache, unless it is there: steps write only behind it."""
        if context is not None and context is not shape.context:
            fill(self._model, context, shape.cache)
        shape.context = context

    def _explained(self) -> AbstractContextManager[None]:
        """Turns errors of setting up into UnsupportedError."""
        return nullcontext()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """See TokenSource.timed."""
        self._is_timed = True
        try:
            yield
        finally:
            self._is_timed = False

    def check(self) -> None:
        """See TokenSource.check."""
        # The loop has no other way to run a step than the shape's; this can only be wrong with us.
        assert not self._capture or (self._shape and self._shape.captured)

    def kernels_per_token(self, count: Callable[[Callable[[], object]], int]) -> float | None:
        """See TokenSource.kernels_per_token."""
        import torch

        if self._shape is None:
            return None
        depth = 0 if self._shape.context is None else self._shape.context.shape[1]
        self._shape.cache.go_to(depth)
        self._shape.cache.begin_decoding()
        # A profiler that starts after a capture may see nothing of a replay, which runs the very same kernels.
        captured_logits = self._shape.latest.logits
        with torch.no_grad():
            kernels = float(count(self._shape.plain_step))
        # A replay goes on writing where it always did.
        self._shape.latest.logits = captured_logits
        return kernels

    @property
    def graph_pool_bytes(self) -> int | None:
        """See Memory.graph_pool_bytes; of the shape that ran last."""
        return self._shape.captured.pool_bytes if self._shape and self._shape.captured else None

    def step_facts(self) -> StepFacts | None:
        """See TokenSource.step_facts."""
        if self._shape is None:
            return None
        captured = self._shape.captured
        return StepFacts(graph_kernels=captured.kernels if captured else None, attention=self._attention(self._shape))

    def _attention(self, shape: Shape) -> str:
        return attention_backend(shape.cache.keys, native=self.native_attention)

    def _linear_kernels(self) -> tuple[KernelUse, ...]:
        """Whose kernels multiply by the weights."""
        return linear_kernels(self._model, compiled=False)

    def _kernels_used(self) -> tuple[KernelUse, ...]:
        if self._shape is None:
            return self._linear_kernels()
        attention = self._attention(self._shape)
        return (*self._linear_kernels(), read_attention(attention))

    def facts(self) -> EngineFacts:
        """See TokenSource.facts."""
        last = self.step_facts() or StepFacts()
        return EngineFacts(
            name=self.name,
            tokens_read="end",
            kv_cache="static",
            setup_s=self._setup_s,
            graphs_captured=self._captured if self._capture else None,
            graph_replays=self._replays if self._capture else None,
            graph_kernels=last.graph_kernels,
            attention=last.attention,
            kernels_used=self._kernels_used(),
        )
