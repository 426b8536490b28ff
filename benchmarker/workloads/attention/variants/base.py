"""What an implementation of attention says of itself, and what it is when it is open.

Nothing here imports torch: what an implementation refuses is known before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from benchmarker.workloads.attention.spec import DType, Shape

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["cuda", "rocm", "cpu"]
"""Of a device, as `hardware.device` has it."""
HALF: tuple[DType, ...] = ("bfloat16", "float16")
ALL: tuple[DType, ...] = ("float32", "tf32", "bfloat16", "float16")


@dataclass(frozen=True)
class Attention:
    """An implementation made ready for one shape on one device."""

    call: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Queries [batch, heads, length, head_dim], keys and values [batch, kv_heads, length, head_dim]; returns the output
    in the queries' shape."""
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    """Surrounds calls, as often as there are several in a row: choosing a backend costs the host more than a launch."""


@dataclass(frozen=True)
class Implementation:
    """One entry of the registry."""

    summary: str
    """What it is, for the docs and for --help."""
    open: Callable[[Shape, str], Attention]
    """Make it ready. The second argument is the device, as torch names it. Imports what it needs."""
    kernels: Mapping[Kind, str] = field(default_factory=dict)
    """By kind of device the pattern that a kernel of it (on CPU an operator) matches. A device that is missing here is
    not supported; an empty pattern says that any kernel will do."""
    dtypes: tuple[DType, ...] = ALL
    longest_head_dim: int | None = None
    takes_window: bool = True
    modules: tuple[str, ...] = ()
    """What has to be importable."""
    remedy: str = ""
    """How to get that."""

    def wrong_shape(self, shape: Shape) -> str | None:
        """Why it cannot do the shape on any device; None where nothing is known against it."""
        if shape.dtype not in self.dtypes:
            return f"takes {' and '.join(self.dtypes)}, not {shape.dtype}"
        if self.longest_head_dim is not None and shape.head_dim > self.longest_head_dim:
            return f"takes a head_dim of {self.longest_head_dim} at most, not {shape.head_dim}"
        if shape.window is not None and not self.takes_window:
            return "takes no window"
        return None

    def unsupported(self, shape: Shape, kind: Kind) -> str | None:
        """Why it cannot run there, in the words of a table; None where nothing is known against it."""
        if kind not in self.kernels:
            return f"not on {NAMES[kind]}; it runs on {' and '.join(NAMES[able] for able in self.kernels)}"
        if kind == "cpu" and shape.dtype == "tf32":
            return "TF32 is a format of NVIDIA's tensor cores; a CPU has none"
        return self.wrong_shape(shape)

    def matches(self, names: Iterable[str], kind: Kind) -> bool:
        """Whether one of the kernels that ran is its own."""
        pattern = self.kernels[kind]
        return not pattern or any(re.search(pattern, name) for name in names)


NAMES: dict[Kind, str] = {"cuda": "NVIDIA GPUs", "rocm": "AMD GPUs", "cpu": "CPUs"}
