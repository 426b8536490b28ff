"""All that belongs to one shape of a fixed cache: the cache, where tokens are taken from and left, and the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarker.engines.capture.graph_capture import Captured
from benchmarker.engines.decoders.static_cache import StaticKVCache

if TYPE_CHECKING:
    from torch import Tensor

    from benchmarker.engines.decoders.captured_prefill import RecordedPrefill


@dataclass
class Latest:
    """What the step that ran last left behind."""

    logits: Tensor | None = None
    """[batch, 1, vocabulary]. Of a captured step always the same memory, which each replay writes anew."""


@dataclass
class Shape:
    """All that belongs to one cache shape."""

    cache: StaticKVCache
    token: Tensor
    """Tokens that the next step takes, [batch, 1]."""
    tokens: Tensor
    """Each token at its own position, [batch, positions of the cache]."""
    plain_step: Callable[[], None]
    """One decode step, kernel by kernel."""
    step: Callable[[], None]
    """One decode step as the engine runs it: kernel by kernel, or as the replay of a graph."""
    captured: Captured | None = None
    context: Tensor | None = None
    """The tokens of the depth that the cache holds; None for none."""
    prefills: dict[int, RecordedPrefill] = field(default_factory=lambda: {})
    """Captured prefills by their padded length."""
    latest: Latest = field(default_factory=lambda: Latest())
