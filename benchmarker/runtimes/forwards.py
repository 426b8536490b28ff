"""A module's class with another forward: how a layer is put to the compiler without changing the model around it."""

from collections.abc import Callable
from typing import Any

from torch import nn

_made: dict[tuple[type[nn.Module], Callable[..., Any]], type[nn.Module]] = {}


def with_forward(kind: type[nn.Module], forward: Callable[..., Any]) -> type[nn.Module]:
    """The same class, of the same name, with this forward, and its own as `alone`: one for all layers of a kind, since
    the compiler tells classes apart."""
    if (kind, forward) not in _made:
        _made[kind, forward] = type(kind.__name__, (kind,), {"forward": forward, "alone": kind.forward})
    return _made[kind, forward]
