"""A user's own function by its import path: `mykernels.attention:forward`.

It gets queries [batch, heads, length, head_dim] and keys and values [batch, kv_heads, length, head_dim], and those of
the keywords `is_causal`, `window` and `enable_gqa` that it has a parameter for. It returns the output in the queries'
shape, in a new tensor for each call. Nothing is imported without --trust-code.
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

from benchmarker.checkpoints.files import fingerprint
from benchmarker.core.errors import SpecError, first_line
from benchmarker.workloads.attention.spec import AttentionShape
from benchmarker.workloads.operation.implementation import Operation


def is_import_path(name: str) -> bool:
    module, colon, function = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), function))


def open_user_function(path: str) -> Callable[[AttentionShape, str], Operation]:
    return lambda shape, device: Operation(_call(path, shape))


def source_sha256(variant: str) -> str | None:
    """Return the SHA-256 of the module's file; None for a variant of the registry or a module without a file.

    Imports the packages that contain the module, but not the module.
    """
    if not is_import_path(variant):
        return None
    _search_current_folder()
    try:
        spec = find_spec(variant.partition(":")[0])
    except (ImportError, ValueError):
        return None
    return fingerprint(Path(spec.origin)) if spec and spec.origin and spec.has_location else None


def _import_function(path: str) -> Callable[..., Any]:
    module_name, _, name = path.partition(":")
    _search_current_folder()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise SpecError(f"variant {path}: cannot import {module_name}: {first_line(error)}") from error
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None or not callable(function):
        raise SpecError(f"variant {path}: {module_name} has no function '{name}'")
    return function


def _search_current_folder() -> None:
    """Search the current folder first, as `python` does without a script."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def _call(path: str, shape: AttentionShape) -> Callable[..., Any]:
    function = _import_function(path)
    offered = {"is_causal": shape.causal, "window": shape.window, "enable_gqa": shape.heads != shape.kv_heads}
    parameters = inspect.signature(function).parameters
    options = {name: value for name, value in offered.items() if name in parameters}

    def call(query: Any, key: Any, value: Any) -> Any:
        try:
            return function(query, key, value, **options)
        except RuntimeError:  # out of memory, or a refusal of torch: handled by the caller
            raise
        except Exception as error:
            *_, (frame, line) = traceback.walk_tb(error.__traceback__)
            location = f"{Path(frame.f_code.co_filename).name}, line {line}"
            raise SpecError(f"variant {path}: {type(error).__name__}: {first_line(error)} ({location})") from error

    return call
