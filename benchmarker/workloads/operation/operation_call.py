"""An implementation of an operation, the inputs and results of one call, and checks of the results.

If a kernel is called again on the same inputs, they are in the cache, unlike in a model. Therefore calls alternate over
copies of the inputs: between two uses of a copy, other copies are read that together fill the cache.

Importing this file needs no torch, so that wrong options are reported before torch is loaded.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Literal

from benchmarker.core.errors import UnsupportedError, WrongResultError
from benchmarker.workloads.operation.record import TensorName

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["cuda", "rocm", "cpu"]  # Kind of a device, as in `hardware.device`.
KIND_NAMES: dict[Kind, str] = {"cuda": "NVIDIA GPUs", "rocm": "AMD GPUs", "cpu": "CPUs"}
ANY_KERNEL: dict[Kind, str] = {"cuda": "", "rocm": "", "cpu": ""}

UNKNOWN_CACHE_BYTES = 2**28
MAX_COPY_BYTES = {"cuda": 2**33, "rocm": 2**33, "cpu": 2**28}
"""Maximum bytes of all copies; a single copy may be larger. Small for CPUs, which report the caches of all sockets."""
HASHED_NUMBERS = 2**16
PART_NUMBERS = 2**26  # Numbers that are compared at once.
GRADIENT_NAMES: dict[str, TensorName] = {"q": "dq", "k": "dk", "v": "dv", "g": "dg", "beta": "dbeta"}

Results = dict[TensorName, "Tensor"]  # Output `o` of a call; after a backward pass, also the gradients of its inputs.


@dataclass(frozen=True)
class Operation:
    call: Callable[..., Tensor]  # Takes queries, keys, values and gates; returns the output.
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    """Context that selects the backend. It encloses many calls, because a selection takes longer than a launch."""


@dataclass(frozen=True, kw_only=True)
class Implementation:
    open: Callable[[Any, str], Operation]
    """Function that prepares the operation for a shape on a device (torch's name) and imports its libraries."""
    kernels: Mapping[Kind, str] = field(default_factory=dict)
    """Regular expression for the name of a kernel (on CPU, of an operator) that must run, by kind of device. A missing
    kind is not supported; an empty expression matches any kernel."""
    dtypes: tuple[str, ...] = ("float32", "tf32", "bfloat16", "float16")
    modules: tuple[str, ...] = ()
    remedy: str = ""

    def wrong_shape(self, shape: Any) -> str | None:
        if shape.dtype not in self.dtypes:
            return f"takes {' and '.join(self.dtypes)}, not {shape.dtype}"
        return None

    def check_available(self, shape: Any, kind: Kind) -> None:
        if kind not in self.kernels:
            runs_on = " and ".join(KIND_NAMES[name] for name in self.kernels)
            raise UnsupportedError(f"not on {KIND_NAMES[kind]}; it runs on {runs_on}")
        if kind == "cpu" and shape.dtype == "tf32":
            raise UnsupportedError("TF32 is a format of NVIDIA's tensor cores; a CPU has none")
        if reason := self.wrong_shape(shape):
            raise UnsupportedError(reason)
        if missing := self.missing_module():
            raise UnsupportedError(f"needs {missing}, which is not installed: {self.remedy}")

    def missing_module(self) -> str | None:
        for module in self.modules:
            with suppress(ModuleNotFoundError):  # a parent package is missing
                if find_spec(module):
                    continue
            return module
        return None

    def matches(self, kernel_names: Iterable[str], kind: Kind) -> bool:
        pattern = self.kernels[kind]
        return not pattern or any(re.search(pattern, name) for name in kernel_names)


@dataclass(frozen=True)
class CallInputs:
    named: dict[str, Tensor]  # q, k, v, and for a gated mixer g and beta, in the order of the arguments.
    gradient: Tensor | None  # Gradient of the output; None without a backward pass.

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(self.named.values())

    @property
    def all_tensors(self) -> tuple[Tensor, ...]:
        return self.tensors if self.gradient is None else (*self.tensors, self.gradient)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> CallInputs:
        """Return inputs with `function` applied to each tensor. Tensors that required a gradient still require it."""
        named = {
            name: function(tensor.detach()).requires_grad_(tensor.requires_grad) for name, tensor in self.named.items()
        }
        return CallInputs(named, None if self.gradient is None else function(self.gradient))

    def copies(self, count: int) -> list[CallInputs]:
        """Return `count` inputs: these, then copies with rolled tensors (faster than new random numbers)."""
        return [self, *(self.mapped(methodcaller("roll", number)) for number in range(1, count))]


def copies_needed(copy_bytes: int, cache_bytes: int | None, *, kind: str) -> int:
    """Return the number of copies: one, and enough others to fill the cache, within MAX_COPY_BYTES."""
    needed = 1 + -(-(cache_bytes or UNKNOWN_CACHE_BYTES) // copy_bytes)
    return max(1, min(needed, MAX_COPY_BYTES[kind] // copy_bytes))


def hash_inputs(header: tuple[object, ...], tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256(repr(header).encode())
    for tensor in tensors:
        digest.update(tensor.flatten()[:HASHED_NUMBERS].cpu().numpy().tobytes())
    return digest.hexdigest()


def results_of(operation: Operation, inputs: CallInputs) -> Results:
    """Return the output of one call, and the gradients of its inputs if there is a backward pass. Raises
    WrongResultError for an output of another shape."""
    import torch

    with operation.around():
        output = operation.call(*inputs.tensors)
        expected = [*inputs.named["q"].shape[:-1], inputs.named["v"].shape[-1]]
        if list(output.shape) != expected:
            raise WrongResultError(f"wrong result: o has the shape {list(output.shape)}, not {expected}")
        if inputs.gradient is None:
            return {"o": output}
        gradients = torch.autograd.grad(output, inputs.tensors, inputs.gradient)
    named = {GRADIENT_NAMES[name]: gradient for name, gradient in zip(inputs.named, gradients, strict=True)}
    # Detached, because the caller keeps the output, which must not keep its graph alive.
    return {"o": output.detach(), **named}


def relative_error(result: Tensor, expected: Tensor) -> float:
    """Return |result - expected| / |expected|, by Frobenius norms; inf if a number is not finite."""
    error, size = 0.0, 0.0
    # In parts: a float64 copy of a long sequence's gradient takes four times the memory of the gradient.
    for part, exact in zip(*(tensor.flatten().split(PART_NUMBERS) for tensor in (result, expected)), strict=True):
        error += (part.double() - exact.double()).square().sum().item()
        size += exact.double().square().sum().item()
    ratio = math.sqrt(error / size)
    return ratio if math.isfinite(ratio) else math.inf


def check_finite(results: Results) -> None:
    for name, result in results.items():
        if not bool(result.isfinite().all()):
            raise WrongResultError(f"wrong result: {name} holds a number that is not finite")


def fresh_results(operation: Operation, inputs: CallInputs, make_fresh: Callable[[], CallInputs]) -> Results:
    """Call the operation twice, overwrite its inputs in place by new values, and return the results of a third call,
    which detects cached results. Raises WrongResultError if the first two calls return the same memory."""
    import torch

    first, second = results_of(operation, inputs), results_of(operation, inputs)
    for name, result in first.items():
        if result.data_ptr() == second[name].data_ptr():
            raise WrongResultError(
                f"wrong result: two calls return {name} in the same memory, so the second overwrites the first; "
                "return a new tensor from each call"
            )
    del first, second, result
    fresh = make_fresh()
    with torch.no_grad():
        for target, values in zip(inputs.all_tensors, fresh.all_tensors, strict=True):
            target.copy_(values)
    return results_of(operation, inputs)
