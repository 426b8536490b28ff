"""Prefill over a fixed KV cache: plain, and recorded as a graph for each padded prompt length.

Launched by the libraries, a prompt of 26 tokens is a thousand launches from Python, which take several times as long as
the work on the device. So the whole prefill, from ids to the first new token, is captured once per length and replayed
with one launch. `plain_prefill` is its specification and its fallback.

A graph has one length. A shorter prompt is padded on the right: real tokens come first, and attention is causal, so
that no real token sees padding. The logits are those of the last real token. Padding leaves keys and values behind the
prompt, at positions to which each decode step writes before it reads. A prompt that is too long for one graph is split
into chunks, each at the position at which the previous one ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.capture.graph_capture import Capture, Captured
from benchmarker.engines.decoders.prefill_decode import LibraryStep, greedy, prefill
from benchmarker.engines.decoders.static_cache import SequenceLengths, StaticKVCache

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from benchmarker.engines.decoders.static_decoder import Shape

STEP = 32
"""Padded lengths are multiples of it. Up to a few hundred rows a GEMM takes as long as reading its weights, so that
padding costs nothing there."""
LONGEST_CHUNK = 4096
"""Tokens of a sequence in one graph."""
MOST_ROWS = 16_384
"""Tokens of all sequences in one graph: activations of more would take gigabytes and save no time."""


def plain_prefill(model: PreTrainedModel, shape: Shape, prompt: Tensor) -> Tensor:
    """Put the prompt into the cache at its position, and the first new token into `shape.token`.

    Returns:
        Logits after the prompt's last token, [batch, 1, vocabulary].
    """
    logits = prefill(model, prompt, shape.cache)
    shape.token.copy_(greedy(logits))
    shape.tokens.index_copy_(1, shape.cache.position.on_device.view(1), shape.token)
    return logits


@dataclass(frozen=True)
class RecordedPrefill:
    """The graph of one padded length, and the memory that it reads and writes."""

    ids: Tensor
    """Token ids of the padded prompt, [batch, padded tokens]."""
    start: Tensor
    """Position of the first token in the cache, a scalar."""
    count: Tensor
    """Number of real tokens, a scalar."""
    logits: list[Tensor]
    """Logits after the last real token, [batch, 1, vocabulary]; a replay writes the list's last entry."""
    captured: Captured


class CapturedPrefill:
    """Prefill by graphs, which are kept in `Shape.prefills`."""

    def __init__(self, step: LibraryStep, capture: Capture | None) -> None:
        self._step = step
        self._capture = capture
        self._plain_reason: str | None = None
        """Why nothing is captured any more."""

    def prepare(self, shape: Shape, prompt_tokens: int) -> bool:
        """Record the graphs that a prompt of this length needs, and return whether any was new."""
        lengths = {length for _, length in chunks(prompt_tokens, len(shape.token))}
        is_new = [self._recorded(shape, length)[1] for length in sorted(lengths)]
        return any(is_new)

    def run(self, shape: Shape, prompt: Tensor, *, shared: bool) -> Tensor:
        """Do the work of `plain_prefill`.

        Args:
            shared: Pad to a power of two, so that texts of many lengths need few graphs.
        """
        position, start = shape.cache.position, 0
        logits: Tensor | None = None
        for count, exact in chunks(prompt.shape[1], len(prompt)):
            length = max(STEP, 1 << (count - 1).bit_length()) if shared else exact
            assert position.on_host is not None
            recorded = None
            if position.on_host + length <= shape.cache.length:
                recorded, _ = self._recorded(shape, length)
            chunk = prompt[:, start : start + count]
            if recorded is None:
                logits = plain_prefill(self._step.model, shape, chunk)
            else:
                recorded.ids[:, :count].copy_(chunk)
                recorded.start.fill_(position.on_host)
                recorded.count.fill_(count)
                recorded.captured.replay()
                position.on_host += count
                logits = recorded.logits[-1]
            start += count
        assert logits is not None
        return logits

    def _recorded(self, shape: Shape, length: int) -> tuple[RecordedPrefill | None, bool]:
        if length in shape.prefills or self._plain_reason is not None or self._capture is None:
            return shape.prefills.get(length), False
        known_position = shape.cache.position.on_host
        try:
            with self._step.explained():
                shape.prefills[length] = self._record(shape, length, self._capture)
        except UnsupportedError as error:
            self._plain_reason = str(error)
        shape.cache.go_to(known_position or 0)
        # Recording overwrites the depth.
        shape.context = None
        return shape.prefills.get(length), True

    def _record(self, shape: Shape, length: int, capture: Capture) -> RecordedPrefill:
        import torch

        # The graph holds this function: a reference to the shape in it would be a cycle that keeps the memory.
        cache, token, tokens, batch = shape.cache, shape.token, shape.tokens, len(shape.token)
        device = cache.position.on_device.device
        ids = torch.zeros(batch, length, dtype=torch.int64, device=device)
        start = torch.zeros((), dtype=torch.int64, device=device)
        count = torch.ones((), dtype=torch.int64, device=device)
        visible = padded_prompt(cache, length=length)
        logits: list[Tensor] = []

        def step() -> None:
            cache.position.on_device.copy_(start)
            visible.lengths.copy_(start + length)
            cache.sequence_lengths.lengths.copy_(start + 1)
            following, prompt_logits = self._step.run_prompt(ids, cache, visible, (count - 1).view(1))
            cache.advance(count)
            token.copy_(following)
            tokens.index_copy_(1, cache.position.on_device.view(1), token)
            logits[:] = [prompt_logits]

        cache.go_to(0)
        cache.begin_decoding()
        return RecordedPrefill(ids, start, count, logits, capture(step))

    def facts(self, shape: Shape | None) -> dict[str, Any]:
        """Fields of EngineFacts."""
        is_captured = bool(shape and shape.prefills) and self._plain_reason is None
        return {"prefill": "captured" if is_captured else "plain", "prefill_reason": self._plain_reason}


def padded(tokens: int) -> int:
    """Return the padded length of a prompt: at most a quarter longer from 256 tokens on, and mostly far less."""
    step = STEP if tokens <= 256 else 2 * STEP if tokens <= 1024 else 4 * STEP
    return -(-tokens // step) * step


def chunks(tokens: int, batch: int) -> Iterator[tuple[int, int]]:
    """Yield the chunks of a prompt: number of tokens and padded length of each."""
    longest = max(STEP, min(LONGEST_CHUNK, MOST_ROWS // batch // STEP * STEP))
    for start in range(0, tokens, longest):
        count = min(longest, tokens - start)
        yield count, min(longest, padded(count))


def padded_prompt(cache: StaticKVCache, *, length: int) -> SequenceLengths:
    """Return the lengths that a padded prompt attends to; `lengths` must still be set to start + length."""
    starts = cache.sequence_lengths.query_starts
    return SequenceLengths(
        cache.sequence_lengths.lengths.clone(), query_starts=starts * length, key_starts=starts * cache.length
    )
