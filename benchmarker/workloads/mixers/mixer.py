"""Mixers by their recurrence, and the registry entry of an implementation. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from benchmarker.workloads.operation.implementation import Implementation

if TYPE_CHECKING:
    from benchmarker.workloads.mixers.record import MixerName
    from benchmarker.workloads.mixers.spec import MixerShape

Layout = Literal["heads first", "length first"]
"""[batch, heads, length, width] or [batch, length, heads, width]. Each implementation gets its inputs in the layout
that it prefers, so that no copy is timed."""


@dataclass(frozen=True)
class Mixer:
    """Interaction of tokens. S is the state of one head, [head_dim, value_dim]; a is a decay, b a strength."""

    name: MixerName
    recurrence: str
    """Update of one token."""
    state_products: int | None
    """Multiplications per token in units of the state's size. None for softmax, which has no state of fixed size."""
    is_gated: bool = False
    """True if each token has a decay and a strength as inputs."""
    is_delta: bool = False
    """True if the value stored for the key is first subtracted from the state."""
    has_unit_keys: bool = False
    """True if queries and keys are scaled to length 1."""


SOFTMAX = Mixer("softmax", "o = softmax(q k^T / sqrt(head_dim)) v over all tokens so far", None)
LINEAR = Mixer("linear", "S += k v^T; o = S^T q / sqrt(head_dim)", 2)
RETENTION = Mixer("retention", "S = a S + k v^T, a = 1 - 2^(-5 - head); o = S^T q / sqrt(head_dim)", 2)
GATED_DELTA = Mixer(
    "gdn",
    "S = a S; S += k (b (v - S^T k))^T; o = S^T q / sqrt(head_dim), keys and queries of length 1",
    3,
    is_gated=True,
    is_delta=True,
    has_unit_keys=True,
)


@dataclass(frozen=True, kw_only=True)
class MixerImplementation(Implementation):
    mixer: Mixer
    source: str
    """Source of its kernels: `torch`, `fla`."""
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    layout: Layout = "heads first"
    packages: tuple[str, ...] = ("torch",)
    """Packages whose versions are recorded."""
    wide_values: bool = True
    """True if values may be wider or narrower than keys."""
    normalizes: bool = False
    """True if it can divide by the sum of its weights."""
    has_backward: bool = True
    writes_scores: bool = False
    """True if the scores of all pairs go through memory."""

    @property
    def is_softmax(self) -> bool:
        return self.mixer is SOFTMAX

    def wrong_shape(self, shape: MixerShape) -> str | None:
        reason = super().wrong_shape(shape)
        if reason:
            return reason
        if shape.value_dim != shape.head_dim and not self.wide_values:
            return f"takes values as wide as keys, not {shape.value_dim} beside {shape.head_dim}"
        if shape.normalize and self.mixer is LINEAR and not self.normalizes:
            return "does not divide by the sum of its weights"
        if shape.is_backward and not self.has_backward:
            return "has no backward pass"
        return None
