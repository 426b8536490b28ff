"""What a runtime is: one way of producing tokens from a loaded model, with the times at which they were made.

All times come from one clock, `time.perf_counter_ns`, with the device drained before the first reading and the last.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from benchmarker.core.errors import BenchmarkerError
from benchmarker.schema.record import RuntimeFacts, StepFacts

if TYPE_CHECKING:
    from torch import Tensor


class UnsupportedError(BenchmarkerError):
    """This variant cannot run in this runtime here; the message says which operation and why."""


@dataclass(frozen=True)
class Generation:
    """One generation: the new tokens and the clock's readings, in nanoseconds."""

    tokens: Tensor
    """[batch, new_tokens], on the CPU."""
    start_ns: int
    first_ns: int
    """The first new token was known."""
    last_ns: int
    """The last new token was known."""
    end_ns: int
    """The call had returned and the device was drained."""


class Runtime(Protocol):
    """One way of producing tokens."""

    def generate(self, prompt: Tensor, new_tokens: int, *, context: Tensor | None = None) -> Generation:
        """Generate greedily, exactly `new_tokens`, whatever the end-of-text token says.

        Args:
            prompt: Token ids, [batch, prompt_tokens], on the model's device.
            new_tokens: At least 1.
            context: Token ids, [batch, depth], that come before the prompt and are in the KV cache when the clock
                starts. Of the same object only the first call takes the time to put them there.

        Raises:
            UnsupportedError: This variant cannot run this way.
        """

    def timed(self) -> AbstractContextManager[None]:
        """Surrounds the timed repeats: what must not happen there, such as a recompilation, raises UnsupportedError."""

    def check(self) -> None:
        """Called after the timed repeats.

        Raises:
            UnsupportedError: What ran is not what the row says, such as a step that was never compiled.
        """

    def kernels_per_token(self, count: Callable[[Callable[[], object]], int]) -> float | None:
        """Kernels of one decode step at the shape that ran last; None before the first.

        Args:
            count: Runs something, and says how many kernels that took on the device.
        """

    @property
    def graph_pool_bytes(self) -> int | None:
        """See Memory.graph_pool_bytes."""

    def step_facts(self) -> StepFacts | None:
        """What is ready for the shape that ran last; None where nothing is kept ready."""

    def facts(self) -> RuntimeFacts:
        """Proof of what ran, for the record."""
