"""A function of the user's own, by its import path: `mykernels.attention:forward`.

It is called with queries [batch, heads, length, head_dim], keys and values [batch, kv_heads, length, head_dim], and
with those of `is_causal`, `window` and `enable_gqa` that it has a parameter of that name for. It returns the output in
the queries' shape, in a tensor of its own for each call. Nothing is imported unless the user said --trust-code.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarker.core.errors import SpecError, first_line
from benchmarker.workloads.attention.spec import Shape
from benchmarker.workloads.attention.variants.base import Attention, Implementation


def is_import_path(name: str) -> bool:
    """Whether a variant is a function and not a name of the registry."""
    module, colon, function = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), function))


def user_function(path: str) -> Implementation:
    """An entry for it. Any kernel will do: the proof is the result."""
    return Implementation(
        summary=f"{path}, a function of your own",
        open=lambda shape, where: Attention(_call(path, shape)),
        kernels={"cuda": "", "rocm": "", "cpu": ""},
    )


def imported(path: str) -> Callable[..., Any]:
    """The function. The current folder is looked in first, as python itself does.

    Raises:
        SpecError: There is no such module or function, or importing it fails.
    """
    module_name, _, name = path.partition(":")
    _look_here_too()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise SpecError(f"variant {path}: cannot import {module_name}: {first_line(error)}") from error
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None or not callable(function):
        raise SpecError(f"variant {path}: {module_name} has no function '{name}'")
    return function


def source_of(path: str) -> Path | None:
    """The file of the module; None where there is none. The packages that it is in are imported for it, it is not."""
    _look_here_too()
    try:
        spec = find_spec(path.partition(":")[0])
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.has_location else None


def _look_here_too() -> None:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def _call(path: str, shape: Shape) -> Callable[..., Any]:
    function = imported(path)
    offered = {"is_causal": shape.causal, "window": shape.window, "enable_gqa": shape.heads != shape.kv_heads}
    parameters = inspect.signature(function).parameters
    options = {name: value for name, value in offered.items() if name in parameters}

    def call(query: Any, key: Any, value: Any) -> Any:
        try:
            return function(query, key, value, **options)
        except RuntimeError:  # Out of memory and torch's refusals, which are told apart elsewhere.
            raise
        except Exception as error:
            *_, (frame, line) = traceback.walk_tb(error.__traceback__)
            place = f"{Path(frame.f_code.co_filename).name}, line {line}"
            raise SpecError(f"variant {path}: {type(error).__name__}: {first_line(error)} ({place})") from error

    return call
