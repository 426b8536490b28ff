"""New tokens as they are made. The host reads a piece while the device makes the next one, so that it never waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarker.engines.decoders.static_decoder import Shape

PIECE = 8
"""Steps that a GPU is given between two looks at the tokens: as many are in vain at most twice, at the end."""


class TokenStream:
    """The tokens after a prompt that is in the cache, its first new token made."""

    def __init__(
        self,
        shape: Shape,
        prompt_tokens: int,
        new_tokens: int,
        *,
        runs_ahead: bool,
        explained: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Nothing is launched yet.

        Args:
            shape: Of one sequence, with room for all new tokens.
            runs_ahead: Whether steps are done while the host does something else.
            explained: Turns errors of a step into those that a user can understand.
        """
        self._shape = shape
        self._prompt_tokens = prompt_tokens
        self._new_tokens = new_tokens
        self._runs_ahead = runs_ahead
        self._explained = explained

    def pieces(self, stop: frozenset[int]) -> Iterator[list[int]]:
        """The tokens in pieces, up to the first that is in `stop`."""
        on_host = self._read_later(self._prompt_tokens, 1)
        launched = 1
        while True:
            count = min(PIECE if self._runs_ahead else 1, self._new_tokens - launched)
            ahead = None
            if self._runs_ahead and count:
                ahead = self._advance(self._prompt_tokens + launched, count)
            tokens = on_host()
            wanted = list(takewhile(lambda token: token not in stop, tokens))
            if wanted:
                yield wanted
            if len(wanted) < len(tokens) or not count:
                return
            on_host = ahead or self._advance(self._prompt_tokens + launched, count)
            launched += count

    def _advance(self, position: int, count: int) -> Callable[[], list[int]]:
        """Start so many steps; the value waits for their tokens, whose first is at `position` in the cache."""
        import torch

        with torch.no_grad(), self._explained():
            for _ in range(count):
                self._shape.step()
        return self._read_later(position, count)

    def _read_later(self, position: int, count: int) -> Callable[[], list[int]]:
        import torch

        tokens = self._shape.tokens[0, position : position + count]
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
