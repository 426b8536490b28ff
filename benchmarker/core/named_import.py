"""What is named as `package.module:name`, and imported when it is used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def imported(where: str) -> Any:
    """What `package.module:name` names."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


def lazily(where: str) -> Callable[..., Any]:
    """A function that is imported when it is called.

    Args:
        where: `package.module:function`.
    """

    def call(*arguments: Any, **named: Any) -> Any:
        return imported(where)(*arguments, **named)

    return call
