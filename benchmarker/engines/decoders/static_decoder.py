"""Generation over a fixed KV cache: set-up once per shape (batch and cache length), then only prefill and decode steps.

A decode step reads its token from a fixed address and writes the next token to it, so that a graph can replay the step
without the host. New tokens stay on the device and are read once, after the clock has stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarker.engines.base import NEEDS_GPU, UnsupportedError
from benchmarker.engines.decoders.graph_capture import Capture, Captured, capture_for
from benchmarker.engines.decoders.prefill_decode import (
    CapturedPrefill,
    LibraryStep,
    PromptGraph,
    RecordedPrefill,
    cache_length,
    captured_experts,
    experts_as,
    log_probabilities,
    padded,
    plain_prefill,
    prefill,
)
from benchmarker.engines.decoders.static_kv_cache import StaticKVCache
from benchmarker.engines.decoders.torch_engine import CHUNK, Batch, TorchDecoder, experts_implementation
from benchmarker.hardware.device import Device
from benchmarker.measure.clock import Generation, time_steps
from benchmarker.schema.model import EngineFacts, StepFacts

PIECE = 8
"""Steps that `stream` launches on a GPU between two reads of tokens. Up to 16 steps are wasted at the end of a text."""


@dataclass
class Shape:
    cache: StaticKVCache
    token: Tensor  # Input tokens of the next step, [batch, 1].
    tokens: Tensor  # New tokens by their position in the cache, [batch, positions of the cache].
    plain_step: Callable[[], None]  # One decode step, launched kernel by kernel.
    step: Callable[[], None]  # One decode step as the engine runs it: the replay of `captured`, else `plain_step`.
    captured: Captured | None
    logits: list[Tensor]
    """List of one tensor: logits of the newest step, [batch, 1, vocabulary]. Each replay of a graph overwrites them."""
    experts: str | None = None  # transformers' implementation of fused experts in a step.
    context: Tensor | None = None  # Ids of the context in the cache, [batch, depth].
    prefills: dict[PromptGraph, RecordedPrefill] = field(default_factory=lambda: {})


def cuda_graph_decoder(model: PreTrainedModel, device: Device, *, capture: Capture | None = None) -> StaticCacheDecoder:
    """Return a decoder that replays the libraries' own step as a graph, instead of two thousand launches per token from
    Python. It works with every quantization whose kernels never wait for the device."""
    return StaticCacheDecoder(LibraryStep(model), device, capture=capture or capture_for(device))


class StaticCacheDecoder(TorchDecoder):
    """Decoder with a fixed KV cache. With `capture`, the decode step is captured as a graph."""

    def __init__(
        self, step: LibraryStep, device: Device, *, capture: Capture | None, captured_prefill: bool = False
    ) -> None:
        super().__init__(step.model, device)
        self.step = step
        self.shape: Shape | None = None
        self._capture = capture
        self._captured_prefill = CapturedPrefill(step, capture) if captured_prefill else None
        self._trial: Sequence[Any] | None = None
        self._setup_s: float | None = None
        self._captured = 0
        self._replays = 0
        self._is_timed = False

    def generate(self, prompt_ids: Batch, new_tokens: int, *, context: Batch | None = None) -> Generation:
        prompt, context = self.tensor(prompt_ids), self.context_tensor(context)
        self._check_device()
        called_ns = time.perf_counter_ns()
        depth = 0 if context is None else context.shape[1]
        with torch.no_grad(), self.step.explained():
            prompt_tokens = prompt.shape[1]
            written = padded(prompt_tokens) if self._captured_prefill else prompt_tokens
            length = cache_length(depth + max(prompt_tokens + new_tokens, written))
            shape, is_new = self._prepare(len(prompt), length)
            if self._captured_prefill:
                is_new = self._captured_prefill.prepare(shape, prompt_tokens, depth) or is_new
            prepared_ns = time.perf_counter_ns()
            if context is not None and context is not shape.context:
                shape.cache.rewind(0)
                for chunk in context.split(CHUNK, dim=1):
                    prefill(self.model, chunk, shape.cache)
                shape.cache.keep()
            shape.context = context
            shape.cache.rewind(depth)

            def begin() -> None:
                self._prefill(shape, prompt)
                shape.cache.begin_decoding()

            first = depth + prompt_tokens
            generation = time_steps(begin, shape.step, self.device, shape.tokens[:, first : first + new_tokens])
        if self._is_timed and shape.captured:
            self._replays += new_tokens - 1
        if is_new:
            # Filling the cache with the context, between these two intervals, does not count as set-up.
            setup_ns = prepared_ns - called_ns + generation.end_ns - generation.start_ns
            self._setup_s = max(self._setup_s or 0.0, setup_ns / 1e9)
        return generation

    def _prefill(self, shape: Shape, prompt: Tensor, *, shared: bool = False) -> Tensor:
        captured = self._captured_prefill
        return captured.run(shape, prompt, shared=shared) if captured else plain_prefill(self.model, shape, prompt)

    def stream(self, prompt: Tensor, new_tokens: int, stop: frozenset[int]) -> Iterator[list[int]]:
        """Yield tokens. On a GPU, the next `PIECE` steps are launched before the newest tokens are read."""
        self._check_device()
        with torch.no_grad(), self.step.explained():
            shape = self._shape_with_room(prompt.shape[1] + new_tokens)
            shape.cache.rewind(0)
            for chunk in prompt.split(CHUNK, dim=1):
                self._prefill(shape, chunk, shared=True)
            shape.cache.begin_decoding()
        runs_ahead = self.device.kind != "cpu"
        read_tokens, launched = read_later(shape, prompt.shape[1], 1), 1
        while True:
            count = min(PIECE if runs_ahead else 1, new_tokens - launched)
            position = prompt.shape[1] + launched
            read_ahead = self._launch(shape, position, count) if runs_ahead and count else None
            tokens = read_tokens()
            before_stop = list(takewhile(lambda token: token not in stop, tokens))
            if before_stop:
                yield before_stop
            if len(before_stop) < len(tokens) or not count:
                return
            read_tokens = read_ahead or self._launch(shape, position, count)
            launched += count

    def _launch(self, shape: Shape, position: int, count: int) -> Callable[[], list[int]]:
        with torch.no_grad(), self.step.explained():
            for _ in range(count):
                shape.step()
        return read_later(shape, position, count)

    def log_probabilities(self, ids: Tensor, *, prompt_tokens: int = 1) -> Tensor:
        """Score a text in every sequence of the last batch, or at batch 1 if the last batch's cache is too short."""
        self._check_device()
        with torch.no_grad(), self.step.explained():
            shape = self.shape if self.shape and self.shape.tokens.shape[1] >= ids.shape[1] else None
            shape = shape or self._shape_with_room(ids.shape[1])
            shape.context = None
            shape.cache.rewind(0)
            prompt = ids[:, :prompt_tokens].expand(len(shape.tokens), -1)
            rows = [log_probabilities(self._prefill(shape, prompt))]
            shape.cache.begin_decoding()
            for position in range(prompt_tokens, ids.shape[1]):
                shape.token.copy_(ids[:, position : position + 1].expand_as(shape.token))
                shape.step()
                rows.append(log_probabilities(shape.logits[-1]))
        return torch.stack(rows)

    def _shape_with_room(self, tokens: int) -> Shape:
        """Return a shape of batch 1 with at least `tokens` positions; a new shape rounds up to a power of two."""
        if self.shape is None or len(self.shape.tokens) > 1 or self.shape.tokens.shape[1] < tokens:
            positions = getattr(self.model.config.get_text_config(decoder=True), "max_position_embeddings", tokens)
            self._prepare(1, max(cache_length(tokens), min(1 << (tokens - 1).bit_length(), positions)))
        assert self.shape is not None
        self.shape.context = None
        return self.shape

    def _check_device(self) -> None:
        if self._capture is None and self.step.name in NEEDS_GPU:
            raise UnsupportedError(NEEDS_GPU[self.step.name])

    def _prepare(self, batch: int, length: int) -> tuple[Shape, bool]:
        if self.shape and self.shape.tokens.shape == (batch, length):
            return self.shape, False
        self.step.prepare(batch, length)
        with self.step.tuning():
            self.shape = None  # frees its memory before the new one is allocated
            self.step.forget()
            self.device.release()
            self.shape = self._new_shape(batch, length)
        return self.shape, True

    def _new_shape(self, batch: int, length: int) -> Shape:
        experts = captured_experts(self.model, batch)
        cache = StaticKVCache(self.model, batch=batch, length=length, trial=self._trial)
        self._trial = cache.trial
        device = cache.position.on_device.device
        token = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        tokens = torch.zeros(batch, length, dtype=torch.int64, device=device)
        logits: list[Tensor] = []

        def step() -> None:
            with experts_as(self.model, experts):
                following, step_logits = self.step.run(token, cache)
            logits[:] = [step_logits]
            token.copy_(following)
            tokens.index_copy_(1, cache.position.on_device.view(1), token)

        cache.begin_decoding()
        captured = self._capture(step) if self._capture else None
        self._captured += captured is not None
        return Shape(cache, token, tokens, step, captured.replay if captured else step, captured, logits, experts)

    @contextmanager
    def timed(self) -> Iterator[None]:
        self._is_timed = True
        try:
            with self.step.timed():
                yield
        finally:
            self._is_timed = False

    def check(self) -> None:
        self.step.check()

    def kernels_per_token(self, count: Callable[[Callable[[], object]], int]) -> float | None:
        if self.shape is None:
            return None
        depth = 0 if self.shape.context is None else self.shape.context.shape[1]
        self.shape.cache.rewind(depth)
        self.shape.cache.begin_decoding()
        # A profiler that starts after a capture may miss a replay's kernels. The plain step launches the same kernels.
        captured_logits = self.shape.logits[:]
        with torch.no_grad():
            kernels = float(count(self.shape.plain_step))
        # Replays write to the captured logits, which the plain step has replaced in the list.
        self.shape.logits[:] = captured_logits
        return kernels

    @property
    def graph_pool_bytes(self) -> int | None:
        if self.shape is None or self.shape.captured is None or self.shape.captured.pool_bytes is None:
            return None
        prefills = self.shape.prefills.values()
        return self.shape.captured.pool_bytes + sum(recorded.captured.pool_bytes or 0 for recorded in prefills)

    def step_facts(self) -> StepFacts | None:
        if self.shape is None:
            return None
        captured, batch = self.shape.captured, len(self.shape.tokens)
        return StepFacts(
            graph_kernels=captured.kernels if captured else None,
            attention=self.step.attention(self.shape.cache),
            experts=self.shape.experts,
            products=self.step.products({batch, *(graph.sequences * graph.length for graph in self.shape.prefills)}),
        )

    def facts(self) -> EngineFacts:
        last = self.step_facts() or StepFacts()
        return EngineFacts(
            name=self.step.name,
            tokens_read="end",
            kv_cache="static",
            setup_s=self._setup_s,
            graphs_captured=self._captured if self._capture else None,
            graph_replays=self._replays if self._capture else None,
            graph_kernels=last.graph_kernels,
            attention=last.attention,
            experts=last.experts or experts_implementation(self.model),
            kernels_used=self.step.kernels_used(last.attention) if last.attention else self.step.linear_kernels(),
            **(self._captured_prefill.facts(self.shape) if self._captured_prefill else {}),
            **self.step.facts(has_shape=self.shape is not None),
        )


def read_later(shape: Shape, position: int, count: int) -> Callable[[], list[int]]:
    """Start copying tokens to the host, and return a function that waits for the copy and returns the tokens."""
    tokens = shape.tokens[0, position : position + count]
    if not tokens.is_cuda:
        values: list[int] = tokens.tolist()
        return lambda: values
    copied = torch.empty(count, dtype=tokens.dtype, pin_memory=True).copy_(tokens, non_blocking=True)
    event = torch.cuda.Event()
    event.record()

    def read() -> list[int]:
        event.synchronize()
        return list(copied.tolist())

    return read
