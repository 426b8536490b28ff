"""Registry entry of an operation. Imports no torch, so that a refusal comes before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from benchmarker.core.errors import UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["cuda", "rocm", "cpu"]
"""Kind of a device, as in `hardware.device`."""
KIND_NAMES: dict[Kind, str] = {"cuda": "NVIDIA GPUs", "rocm": "AMD GPUs", "cpu": "CPUs"}
ANY_KERNEL: dict[Kind, str] = {"cuda": "", "rocm": "", "cpu": ""}


@dataclass(frozen=True)
class Operation:
    """Implementation prepared for one shape on one device."""

    call: Callable[..., Tensor]
    """Takes queries, keys, values and gates; returns the output."""
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    """Context of several calls in a row: selecting a backend costs the host more than a launch."""


@dataclass(frozen=True, kw_only=True)
class Implementation:
    summary: str
    """One line for the documentation."""
    open: Callable[[Any, str], Operation]
    """Prepare the operation for a shape on a device (torch's name). Imports the libraries that it uses."""
    kernels: Mapping[Kind, str] = field(default_factory=dict)
    """Pattern of one of its kernels' names (on CPU an operator's name) by kind of device. A missing kind is not
    supported; an empty pattern matches any kernel."""
    dtypes: tuple[str, ...] = ("float32", "tf32", "bfloat16", "float16")
    modules: tuple[str, ...] = ()
    """Modules that must be importable."""
    remedy: str = ""
    """Instructions to install them."""

    def wrong_shape(self, shape: Any) -> str | None:
        """Return why no device supports the shape, or None."""
        if shape.dtype not in self.dtypes:
            return f"takes {' and '.join(self.dtypes)}, not {shape.dtype}"
        return None

    def unsupported(self, shape: Any, kind: Kind) -> str | None:
        """Return why the implementation cannot run on that kind of device, or None."""
        if kind not in self.kernels:
            return f"not on {KIND_NAMES[kind]}; it runs on {' and '.join(KIND_NAMES[name] for name in self.kernels)}"
        if kind == "cpu" and shape.dtype == "tf32":
            return "TF32 is a format of NVIDIA's tensor cores; a CPU has none"
        return self.wrong_shape(shape)

    def check_available(self, shape: Any, kind: Kind) -> None:
        """Raise UnsupportedError if the implementation cannot run or its library is not installed."""
        reason = self.unsupported(shape, kind)
        missing = self.missing_module()
        if reason is None and missing:
            reason = f"needs {missing}, which is not installed: {self.remedy}"
        if reason:
            raise UnsupportedError(reason)

    def missing_module(self) -> str | None:
        return next((module for module in self.modules if not _is_installed(module)), None)

    def matches(self, kernel_names: Iterable[str], kind: Kind) -> bool:
        pattern = self.kernels[kind]
        return not pattern or any(re.search(pattern, name) for name in kernel_names)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
