"""The clock of a generation. Every latency, TTFT and TPOT in a record is measured here.

`time.perf_counter_ns` on the host is read at the start, when the first and when the last new token is available, and at
the end. The device is synchronized before the first and the last reading. Prefill makes the first of N tokens:

    latency = end - start
    TTFT    = first - start
    TPOT    = (last - first) / (N - 1)

`model.generate` hands each token to a streamer as soon as it is on the host. With a fixed KV cache, steps are launched
one after another while tokens stay on the device. Drivers of external engines read the same clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarker.core.errors import WrongTokenCountError
from benchmarker.schema.base import Count, Seconds, Whole
from benchmarker.schema.record import SampleBase

if TYPE_CHECKING:
    from torch import Tensor

    from benchmarker.hardware.device import Device


class GenerationSample(SampleBase):
    """One timed generation: from the call to the last token."""

    ttft_s: Seconds | None = None
    """Time to first token: from the call until the first new token is available."""
    tpot_s: Seconds | None = None
    """Time per output token after the first: (last token - first token) / (tokens - 1). None for a single token."""
    new_tokens: Count
    """Tokens made per sequence, counted in the output."""
    accepted_tokens: Whole | None = None
    """Draft tokens that the model accepted, all sequences together, by the engine's counter. None without speculative
    decoding."""


@dataclass(frozen=True)
class Generation:
    tokens: tuple[tuple[int, ...], ...]  # [batch][new_tokens].
    start_ns: int
    first_ns: int
    last_ns: int
    end_ns: int
    accepted_tokens: int | None = None

    def sample(self, new_tokens: int) -> GenerationSample:
        """Return the times in seconds. Raises WrongTokenCountError if a sequence does not have `new_tokens` tokens."""
        for row in self.tokens:
            if len(row) != new_tokens:
                raise WrongTokenCountError(f"{len(row)} tokens came instead of {new_tokens}")
        steps = new_tokens - 1
        return GenerationSample(
            latency_s=(self.end_ns - self.start_ns) / 1e9,
            ttft_s=(self.first_ns - self.start_ns) / 1e9,
            tpot_s=(self.last_ns - self.first_ns) / 1e9 / steps if steps else None,
            new_tokens=new_tokens,
            accepted_tokens=self.accepted_tokens,
        )


class TokenClock:
    """Streamer of `model.generate` that reads the clock: first for the prompt, then for each token."""

    def __init__(self) -> None:
        self.times_ns: list[int] = []

    def put(self, value: Tensor) -> None:  # noqa: ARG002 - the value is already on the host; only its time is needed
        self.times_ns.append(time.perf_counter_ns())

    def end(self) -> None: ...


def time_streamed(generate: Callable[[TokenClock], Tensor], device: Device, *, prompt_tokens: int) -> Generation:
    """Time a call that streams its tokens and returns token ids, [batch, prompt_tokens + new_tokens]."""
    clock = TokenClock()
    device.synchronize()
    start_ns = time.perf_counter_ns()
    output = generate(clock)
    device.synchronize()
    end_ns = time.perf_counter_ns()
    _, first_ns, *later_ns = clock.times_ns
    tokens = rows_of(output[:, prompt_tokens:])
    return Generation(tokens, start_ns, first_ns, later_ns[-1] if later_ns else first_ns, end_ns)


def time_steps(prefill: Callable[[], object], step: Callable[[], object], device: Device, tokens: Tensor) -> Generation:
    """Time a prefill and the decode steps after it, which write all new tokens to `tokens`, [batch, new_tokens]."""
    steps = tokens.shape[1] - 1
    device.synchronize()
    start_ns = time.perf_counter_ns()
    prefill()
    device.synchronize()
    first_ns = time.perf_counter_ns()
    for _ in range(steps):
        step()
    device.synchronize()
    end_ns = time.perf_counter_ns()
    return Generation(rows_of(tokens), start_ns, first_ns, end_ns, end_ns)


def rows_of(tokens: Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in tokens.tolist())
