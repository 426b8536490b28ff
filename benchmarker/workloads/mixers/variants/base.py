"""What a mixer is, what an implementation of it says of itself, and what that is when it is open.

Nothing here imports torch: what an implementation refuses is known before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from benchmarker.workloads.attention.variants.base import NAMES, Kind

if TYPE_CHECKING:
    from torch import Tensor

    from benchmarker.schema.base import DType
    from benchmarker.workloads.mixers.record import MixerName
    from benchmarker.workloads.mixers.spec import Shape

Layout = Literal["heads first", "length first"]
"""[batch, heads, length, numbers] or [batch, length, heads, numbers]. Each implementation has its inputs as it likes
them best, so that no copy is timed."""


@dataclass(frozen=True)
class Mixer:
    """How tokens see each other. S is the state of one head, [head_dim, value_dim]; a is a decay, b a strength."""

    name: MixerName
    recurrence: str
    """What one token does, for the documents."""
    state_products: int | None
    """Products of the size of the state that a token costs. None for softmax, which has no state of a fixed size."""
    is_gated: bool = False
    """Whether each token has a decay and a strength of its own as inputs."""
    is_delta: bool = False
    """Whether the value that the key has in the state already is taken away first."""
    has_unit_keys: bool = False
    """Whether queries and keys are scaled to length 1."""


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


@dataclass(frozen=True)
class Operation:
    """An implementation made ready for one shape on one device."""

    call: Callable[..., Tensor]
    """Queries, keys, values, and for a gated mixer the logarithms of the decays and the strengths, a number for each
    position and head; returns the output in the values' shape."""
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    """Surrounds calls in a row."""


@dataclass(frozen=True)
class Implementation:
    """One entry of the registry."""

    mixer: Mixer
    source: str
    """Where its kernels are from: `torch`, `fla`."""
    summary: str
    """What it is, for the docs and for --help."""
    open: Callable[[Shape, str], Operation]
    """Make it ready. The second argument is the device, as torch names it. Imports what it needs."""
    kernels: Mapping[Kind, str] = field(default_factory=dict)
    """By kind of device the pattern that a kernel of it (on CPU an operator) matches. A device that is missing here is
    not supported; an empty pattern says that any kernel will do."""
    layout: Layout = "heads first"
    dtypes: tuple[DType, ...] = ("float32", "bfloat16", "float16")
    modules: tuple[str, ...] = ()
    """What has to be importable."""
    remedy: str = ""
    """How to get that."""
    packages: tuple[str, ...] = ("torch",)
    """Whose versions matter."""
    wide_values: bool = True
    """Whether values may be wider or narrower than keys."""
    normalizes: bool = False
    """Whether it can divide by the sum of its weights."""
    has_backward: bool = True
    writes_scores: bool = False
    """Whether the scores of all pairs go through memory."""

    def unsupported(self, shape: Shape, kind: Kind) -> str | None:
        """Why it cannot run there, in the words of a table; None where nothing is known against it."""
        if kind not in self.kernels:
            return f"not on {NAMES[kind]}; it runs on {' and '.join(NAMES[name] for name in self.kernels)}"
        if shape.dtype not in self.dtypes:
            return f"takes {' and '.join(self.dtypes)}, not {shape.dtype}"
        if shape.value_dim != shape.head_dim and not self.wide_values:
            return f"takes values as wide as keys, not {shape.value_dim} beside {shape.head_dim}"
        if shape.normalize and self.mixer is LINEAR and not self.normalizes:
            return "does not divide by the sum of its weights"
        if shape.is_backward and not self.has_backward:
            return "has no backward pass"
        return None

    def matches(self, names: Iterable[str], kind: Kind) -> bool:
        """Whether one of the kernels that ran is its own."""
        pattern = self.kernels[kind]
        return not pattern or any(re.search(pattern, name) for name in names)
