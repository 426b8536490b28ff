"""Triton; or, where torch brings none (on a CPU), a stand-in with which the kernels' files can still be imported.

With it, `supports` can be asked and an operator's shapes are known on any machine. Launching a kernel without Triton is
an AttributeError; nothing launches one where `supports` has a reason against it.
"""

from types import SimpleNamespace
from typing import Any

try:
    import triton
    import triton.language as tl
except ImportError:

    def _as_it_is(*functions: Any, **_: Any) -> Any:
        """A stand-in for `triton.jit`, with arguments or without, and for `tl.constexpr`: what is given, unchanged."""
        return functions[0] if functions else _as_it_is

    triton: Any = SimpleNamespace(jit=_as_it_is)  # type: ignore[no-redef]
    tl: Any = SimpleNamespace(constexpr=_as_it_is)  # type: ignore[no-redef]

__all__ = ["tl", "triton"]
