"""The generation loop of the runtimes with a fixed cache: everything is made ready at a new shape, then only repeated.

A step takes its token from a fixed place and leaves the next one there, so that it can be run, compiled or replayed
without a word from the host. New tokens are collected on the device and read once, after the clock has stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarker.hardware.device import Device
from benchmarker.runtimes.attention import way_of
from benchmarker.runtimes.base import Generation
from benchmarker.runtimes.capture import Capture, Captured
from benchmarker.runtimes.fixed import FixedCache
from benchmarker.runtimes.static import cache_length, decode_step, fill, prefill
from benchmarker.schema.record import RuntimeFacts, StepFacts

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


@dataclass
class Shape:
    """All that belongs to one cache shape."""

    cache: FixedCache
    token: Tensor
    """[batch, 1]: what the next step takes."""
    tokens: Tensor
    """[batch, positions of the cache]: each token at its own position."""
    plain_step: Callable[[], None]
    """One decode step, kernel by kernel."""
    step: Callable[[], None]
    """The same in the way that the runtime runs it."""
    captured: Captured | None = None
    context: Tensor | None = None
    """The tokens of the depth that the cache holds; None for none."""


class FixedRuntime:
    """Prefill as the model does it, and a decode step over a fixed cache, captured where there is a `capture`."""

    name = "graph"

    def __init__(self, model: PreTrainedModel, device: Device, *, capture: Capture | None) -> None:
        self._model = model
        self._device = device
        self._capture = capture
        self._shape: Shape | None = None
        self._setup_s: float | None = None
        self._captured = 0
        self._replays = 0
        self._is_timed = False

    def generate(self, prompt: Tensor, new_tokens: int, *, context: Tensor | None = None) -> Generation:
        """See Runtime.generate. The first call at a new shape sets it up."""
        import torch

        called_ns = time.perf_counter_ns()
        depth = 0 if context is None else context.shape[1]
        with torch.no_grad(), self._explained():
            shape, is_new = self._prepare(len(prompt), cache_length(depth + prompt.shape[1] + new_tokens))
            prepared_ns = time.perf_counter_ns()
            self._fill(shape, context)
            generation = self._generate(shape, prompt, new_tokens, depth)
        if is_new:
            # A depth that is put into the cache in between is no part of setting up.
            setup_ns = prepared_ns - called_ns + generation.end_ns - generation.start_ns
            self._setup_s = max(self._setup_s or 0.0, setup_ns / 1e9)
        return generation

    def _generate(self, shape: Shape, prompt: Tensor, new_tokens: int, depth: int) -> Generation:
        cache, step = shape.cache, shape.step
        cache.go_to(depth)
        self._device.synchronize()
        start_ns = time.perf_counter_ns()
        shape.token.copy_(prefill(self._model, prompt, cache))
        shape.tokens.index_copy_(1, cache.place.position.view(1), shape.token)
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
        return Generation(tokens=tokens, start_ns=start_ns, first_ns=first_ns, last_ns=end_ns, end_ns=end_ns)

    def _prepare(self, batch: int, length: int) -> tuple[Shape, bool]:
        """What belongs to this shape, and whether it was made just now. One shape is kept at a time."""
        import torch

        shape = self._shape
        if shape and shape.tokens.shape == (batch, length):
            return shape, False
        self._shape = shape = None  # gives the memory back before more is taken
        self._forget()
        self._device.release()
        cache = FixedCache(self._model, batch=batch, length=length)
        device = cache.place.position.device
        token = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        tokens = torch.zeros(batch, length, dtype=torch.int64, device=device)

        def step() -> None:
            token.copy_(self._decode(token, cache))
            tokens.index_copy_(1, cache.place.position.view(1), token)

        cache.begin_decoding()
        captured = self._capture(step) if self._capture else None
        self._captured += captured is not None
        self._shape = Shape(cache, token, tokens, step, captured.replay if captured else step, captured)
        return self._shape, True

    def _decode(self, token: Tensor, cache: FixedCache) -> Tensor:
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
        """See Runtime.timed."""
        self._is_timed = True
        try:
            yield
        finally:
            self._is_timed = False

    def check(self) -> None:
        """See Runtime.check."""
        # The loop has no other way to run a step than the shape's; this can only be wrong with us.
        assert not self._capture or (self._shape and self._shape.captured)

    def kernels_per_token(self, count: Callable[[Callable[[], object]], int]) -> float | None:
        """See Runtime.kernels_per_token."""
        import torch

        if self._shape is None:
            return None
        depth = 0 if self._shape.context is None else self._shape.context.shape[1]
        self._shape.cache.go_to(depth)
        self._shape.cache.begin_decoding()
        # A profiler that starts after a capture may see nothing of a replay, which runs the very same kernels.
        with torch.no_grad():
            return float(count(self._shape.plain_step))

    @property
    def graph_pool_bytes(self) -> int | None:
        """See Memory.graph_pool_bytes; of the shape that ran last."""
        return self._shape.captured.pool_bytes if self._shape and self._shape.captured else None

    def step_facts(self) -> StepFacts | None:
        """See Runtime.step_facts."""
        if self._shape is None:
            return None
        captured = self._shape.captured
        return StepFacts(graph_kernels=captured.kernels if captured else None, attention=way_of(self._shape.cache.keys))

    def facts(self) -> RuntimeFacts:
        """See Runtime.facts."""
        last = self.step_facts() or StepFacts()
        return RuntimeFacts(
            name=self.name,
            tokens_read="end",
            kv_cache="static",
            setup_s=self._setup_s,
            graphs_captured=self._captured if self._capture else None,
            graph_replays=self._replays if self._capture else None,
            graph_kernels=last.graph_kernels,
            attention=last.attention,
        )
