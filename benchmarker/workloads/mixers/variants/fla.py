"""Kernels of flash-linear-attention, in Triton. Its functions take [batch, length, heads, width].

The library imports on any machine with triton and runs only on a GPU. It may hand a call to another library's kernel,
so the kernel that ran is checked by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import UnsupportedError, install_hint
from benchmarker.workloads.mixers.mixer import Mixer, MixerImplementation
from benchmarker.workloads.mixers.spec import MixerShape
from benchmarker.workloads.operation.implementation import Operation

if TYPE_CHECKING:
    from torch import Tensor

COMPILER_REFUSED = "upgrade triton"
"""Part of fla's message for a Triton that miscompiles a kernel: 3.4.0 to 3.7.0 miscompile the backward pass
of the delta rule on Hopper (fla-org/flash-linear-attention, issue 640)."""


def fla(
    mixer: Mixer, function: str, kernel: str, summary: str, *, normalizes: bool = False, has_backward: bool = True
) -> MixerImplementation:
    """Return the registry entry of one function of the library.

    Args:
        function: `fla.ops.<module>:<name>`.
        kernel: Pattern of the name of one of its kernels.
    """
    module, _, name = function.partition(":")

    def open_function(shape: MixerShape, device: str) -> Operation:  # noqa: ARG001
        mix: Callable[..., Any] = getattr(import_module(module), name)
        # Normalization is an option of linear attention alone, and its default.
        options = {"normalize": shape.normalize} if normalizes else {}

        def call(query: Tensor, key: Tensor, value: Tensor, *gates: Tensor) -> Tensor:
            named = dict(zip(("g", "beta"), gates, strict=True)) if gates else {}
            output: Tensor = mix(query, key, value, **named, **options)[0]
            return output

        return Operation(call)

    return MixerImplementation(
        mixer=mixer,
        source="fla",
        summary=summary,
        open=open_function,
        kernels={"cuda": kernel, "rocm": kernel},
        layout="length first",
        dtypes=("bfloat16", "float16"),
        modules=("triton", "fla"),
        remedy=install_hint("mixers"),
        packages=("fla-core", "triton", "torch"),
        normalizes=normalizes,
        has_backward=has_backward,
    )


@contextmanager
def refused_compiler_is_unsupported() -> Iterator[None]:
    """Turn fla's refusal of a Triton that miscompiles a kernel into UnsupportedError, in one line."""
    try:
        yield
    except RuntimeError as error:
        if COMPILER_REFUSED not in str(error).lower():
            raise
        raise UnsupportedError(f"fla: {str(error).strip().splitlines()[0]}") from error
