"""flash-linear-attention's kernels, in Triton. Its functions take [batch, length, heads, numbers].

They import where triton does, and run on a GPU alone. Which kernel ran is proven by name: the library may hand a call
to another one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import UnsupportedError
from benchmarker.core.packages import install_hint
from benchmarker.workloads.mixers.spec import Shape
from benchmarker.workloads.mixers.variants.base import Implementation, Layout, Mixer, Operation

if TYPE_CHECKING:
    from torch import Tensor

LENGTH_FIRST: Layout = "length first"
COMPILER_REFUSED = "upgrade triton"
"""In fla's words where it knows that this Triton compiles a kernel wrongly, as 3.4.0 to 3.7.0 do the delta rule's
backward pass on Hopper (fla-org/flash-linear-attention, issue 640)."""


def fla(
    mixer: Mixer, function: str, kernel: str, summary: str, *, normalizes: bool = False, has_backward: bool = True
) -> Implementation:
    """An implementation that is one function of the library.

    Args:
        function: `fla.ops.<module>:<name>`.
        kernel: Pattern of one of its kernels' names.
    """
    module, _, name = function.partition(":")

    def open_function(shape: Shape, where: str) -> Operation:  # noqa: ARG001
        mix: Callable[..., Any] = getattr(import_module(module), name)
        # Only linear attention can divide, and it does so unless told.
        options = {"normalize": shape.normalize} if normalizes else {}

        def call(query: Tensor, key: Tensor, value: Tensor, *gates: Tensor) -> Tensor:
            named = dict(zip(("g", "beta"), gates, strict=True)) if gates else {}
            output: Tensor = mix(query, key, value, **named, **options)[0]
            return output

        return Operation(call)

    return Implementation(
        mixer=mixer,
        source="fla",
        summary=summary,
        open=open_function,
        kernels={"cuda": kernel, "rocm": kernel},
        layout=LENGTH_FIRST,
        dtypes=("bfloat16", "float16"),
        modules=("triton", "fla.ops"),
        remedy=install_hint("mixers"),
        packages=("fla-core", "triton", "torch"),
        normalizes=normalizes,
        has_backward=has_backward,
    )


@contextmanager
def refused_compiler_is_unsupported() -> Iterator[None]:
    """Turn fla's refusal of a Triton that compiles a kernel wrongly into one line.

    Raises:
        UnsupportedError: With fla's reason and remedy.
    """
    try:
        yield
    except RuntimeError as error:
        if COMPILER_REFUSED not in str(error).lower():
            raise
        raise UnsupportedError(f"fla: {str(error).strip().splitlines()[0]}") from error
