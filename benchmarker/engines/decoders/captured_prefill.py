"""A prefill without the host: recorded as a graph for each padded prompt length, then replayed.

Run as the libraries have it, a prompt of 26 tokens is a thousand launches from Python, which take several times as long
as the work on the device. So the whole prefill, from ids to the first new token, is captured once for a length and
replayed with one launch.

A graph has one length. A shorter prompt is padded on the right: its tokens come first, and attention is causal, so that
no real token sees a padded one. The logits are those of the last real token. What padding leaves in the cache lies
behind the prompt, where each decode step writes before it reads. A prompt that is longer than a graph may be goes in
chunks, each at the position where the one before it ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.capture.graph_capture import Captured
from benchmarker.engines.decoders.attention import prompt_attention_backend
from benchmarker.engines.decoders.cache_shape import Shape
from benchmarker.engines.decoders.decode_loop import StaticCacheDecoder
from benchmarker.engines.decoders.prefill_decode import greedy
from benchmarker.engines.decoders.static_cache import SequenceLengths, StaticKVCache
from benchmarker.schema.engine_facts import EngineFacts

if TYPE_CHECKING:
    from torch import Tensor

STEP = 32
"""Padded lengths are multiples of it. Up to a few hundred rows a product takes as long as reading its weights, so that
padding costs nothing there."""
LONGEST_CHUNK = 4096
"""Tokens of a sequence in one graph."""
MOST_ROWS = 16_384
"""Tokens of all sequences in one graph: activations of more would take gigabytes, and save no time."""


@dataclass(frozen=True)
class RecordedPrefill:
    """The graph of one padded length, and the memory that it reads and writes."""

    ids: Tensor
    """Token ids of the padded prompt, [batch, padded tokens]."""
    start: Tensor
    """Position of the first token in the cache, a scalar."""
    count: Tensor
    """How many of the tokens are real, a scalar."""
    logits: list[Tensor]
    """Logits after the last real token, [batch, 1, vocabulary]; a replay writes the list's last entry."""
    captured: Captured


class CapturedPrefillDecoder(StaticCacheDecoder):
    """A decoder with a fixed cache whose prefill is a graph as well."""

    _plain_because: str | None = None
    """Why nothing is captured any more."""

    def padded_length(self, prompt_tokens: int) -> int:
        """Positions that a prefill of so many tokens writes to."""
        return padded(prompt_tokens)

    def _prepare_prefill(self, shape: Shape, prompt_tokens: int) -> bool:
        lengths = {length for _, length in chunks(prompt_tokens, len(shape.token))}
        is_new = [self._recorded(shape, length)[1] for length in sorted(lengths)]
        return any(is_new)

    def _prefill(self, shape: Shape, prompt: Tensor, *, shared: bool = False) -> Tensor:
        """See `StaticCacheDecoder._prefill`.

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
                logits = super()._prefill(shape, chunk)
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
        """The graph of a padded length, and whether it was made just now; None where it cannot be captured."""
        if length in shape.prefills or self._plain_because is not None or self._capture is None:
            return shape.prefills.get(length), False
        known_position = shape.cache.position.on_host
        try:
            with self._explained():
                shape.prefills[length] = self._record(shape, length)
        except UnsupportedError as error:
            self._plain_because = str(error)
        shape.cache.go_to(known_position or 0)
        # Recording writes where a depth lies.
        shape.context = None
        return shape.prefills.get(length), True

    def _record(self, shape: Shape, length: int) -> RecordedPrefill:
        import torch

        cache, batch = shape.cache, len(shape.token)
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
            following, prompt_logits = self._prompt_step(ids, cache, visible, (count - 1).view(1))
            cache.advance(count)
            shape.token.copy_(following)
            shape.tokens.index_copy_(1, cache.position.on_device.view(1), shape.token)
            logits[:] = [prompt_logits]

        cache.go_to(0)
        cache.begin_decoding()
        assert self._capture is not None
        return RecordedPrefill(ids, start, count, logits, self._capture(step))

    def _prompt_step(
        self, ids: Tensor, cache: StaticKVCache, visible: SequenceLengths, last: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Put a padded prompt into the cache.

        Args:
            ids: [batch, padded tokens].
            visible: Of the cache, to the padded prompt.
            last: [1]: which of the tokens is the last real one.

        Returns:
            The token that follows it, [batch, 1], and the logits that it is the largest of, [batch, 1, vocabulary].
        """
        with prompt_attention_backend(self._model):
            logits: Tensor = self._model(
                input_ids=ids,
                past_key_values=cache.layers,
                use_cache=True,
                sequence_lengths=visible,
                logits_to_keep=last,
            ).logits
        return greedy(logits), logits

    @property
    def graph_pool_bytes(self) -> int | None:
        """See Memory.graph_pool_bytes; of the shape that ran last, its prefills included."""
        step = super().graph_pool_bytes
        if step is None or self._shape is None:
            return step
        return step + sum(recorded.captured.pool_bytes or 0 for recorded in self._shape.prefills.values())

    def facts(self) -> EngineFacts:
        """See TokenSource.facts."""
        is_captured = bool(self._shape and self._shape.prefills) and self._plain_because is None
        prefill: Literal["captured", "plain"] = "captured" if is_captured else "plain"
        return super().facts().model_copy(update={"prefill": prefill, "prefill_reason": self._plain_because})


def padded(tokens: int) -> int:
    """The length that a prompt is padded to: at most a quarter longer from 256 tokens on, and mostly far less."""
    step = STEP if tokens <= 256 else 2 * STEP if tokens <= 1024 else 4 * STEP
    return -(-tokens // step) * step


def chunks(tokens: int, batch: int) -> Iterator[tuple[int, int]]:
    """How a prompt goes into graphs: for each chunk its tokens, and what they are padded to."""
    longest = max(STEP, min(LONGEST_CHUNK, MOST_ROWS // batch // STEP * STEP))
    for start in range(0, tokens, longest):
        count = min(longest, tokens - start)
        yield count, min(longest, padded(count))


def padded_prompt(cache: StaticKVCache, *, length: int) -> SequenceLengths:
    """What a padded prompt sees of the cache; its lengths are still to be set to start + length."""
    starts = cache.sequence_lengths.query_starts
    return SequenceLengths(
        cache.sequence_lengths.lengths.clone(), query_starts=starts * length, key_starts=starts * cache.length
    )
