"""What runs the decode step of a loaded transformers model. It takes tensors on the model's device.

Importing this file needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from benchmarker.schema.engine_facts import EngineFacts, StepFacts

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Decoded:
    """A generation whose tokens are a tensor; the rest as in `Generation`."""

    tokens: Tensor
    """[batch, new_tokens], on the CPU."""
    start_ns: int
    first_ns: int
    last_ns: int
    end_ns: int


class Decoder(Protocol):
    """Makes tokens with a loaded model. See TokenSource for what has no words here."""

    def generate(self, prompt: Tensor, new_tokens: int, *, context: Tensor | None = None) -> Decoded:
        """Generate exactly `new_tokens` greedily; see TokenSource.generate.

        Args:
            prompt: Ids, [batch, prompt_tokens], on the model's device.
            context: Ids before the prompt, [batch, depth], on the model's device; None for none.
        """

    def stream(self, prompt: Tensor, new_tokens: int, stop: frozenset[int]) -> Iterator[list[int]]:
        """Greedy tokens of one sequence as they come, in pieces, up to `new_tokens` or the first of `stop`, which is
        not among them.

        Args:
            prompt: [1, prompt_tokens].
        """

    def score(self, ids: Tensor, *, prompt_tokens: int = 1) -> Tensor:
        """Score a text by the decode step that is timed; see TokenSource.score.

        Args:
            ids: [1, positions].
            prompt_tokens: Ids that the prefill takes; each further one is a decode step.

        Returns:
            Log-probabilities, [rows, vocabulary], float32, on the CPU.
        """

    def timed(self) -> AbstractContextManager[None]: ...

    def check(self) -> None: ...

    def kernels_per_token(self, count: Callable[[Callable[[], object]], int]) -> float | None: ...

    @property
    def graph_pool_bytes(self) -> int | None: ...

    def step_facts(self) -> StepFacts | None: ...

    def facts(self) -> EngineFacts: ...
