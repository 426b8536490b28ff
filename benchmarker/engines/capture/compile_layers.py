"""A model's decoder layers and the norm behind them, left to somebody else for the length of one decode step.

The model around them stays what it was: its own loop calls the layers, and before and after the step nothing is
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarker.engines.base import UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

RunLayer = Callable[["nn.Module", "Tensor", dict[str, Any]], Any]
"""Runs a layer on hidden states and its other arguments, with the layer's own part of the cache among them."""


class Route:
    """One step's way through the model."""

    def __init__(self, model: PreTrainedModel, layers: Sequence[nn.Module], run: RunLayer) -> None:
        self._model = type(model).__name__
        self._layers = layers
        self._run = run
        self._norm: Any = getattr(model.base_model, "norm", None)
        self._ran = 0
        self._left: Tensor | None = None

    @contextmanager
    def taken(self) -> Iterator[None]:
        """The model goes this way inside."""
        with ExitStack() as stack:
            for index, layer in enumerate(self._layers):
                stack.enter_context(_forward_of(layer, partial(self._layer, index)))
            if self._norm is not None:
                stack.enter_context(_forward_of(self._norm, partial(self._last_norm, self._norm.forward)))
            yield

    def norm_left(self, hidden: Tensor) -> nn.Module | None:
        """The norm that is still to be applied to what the step made.

        Raises:
            UnsupportedError: The step did not go this way.
        """
        if self._ran != len(self._layers):
            raise UnsupportedError(
                f"{self._model} runs {self._ran} of its {len(self._layers)} decoder layers in a decode step; "
                "use --engine eager or cuda_graph"
            )
        if self._left is None:
            return None
        if self._left is not hidden:
            raise UnsupportedError(
                f"{self._model} does something behind its last norm; use --engine eager or cuda_graph"
            )
        norm: nn.Module = self._norm
        return norm

    def _layer(self, index: int, hidden_states: Tensor, *rest: Any, **arguments: Any) -> Any:
        cache = arguments.get("past_key_values")
        if rest or cache is None:
            raise UnsupportedError(
                f"{self._model} hands its cache to a layer in a way of its own; use --engine eager or cuda_graph"
            )
        self._ran += 1
        layer_arguments = {**arguments, "past_key_values": cache.layers[index]}
        return self._run(self._layers[index], hidden_states, layer_arguments)

    def _last_norm(self, norm: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
        # Some models have the same norm before their layers too.
        if self._ran < len(self._layers):
            return norm(hidden)
        self._left = hidden
        return hidden


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The model's decoder layers, first to last.

    Raises:
        UnsupportedError: They cannot be found.
    """
    from torch import nn

    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    raise UnsupportedError(
        f"no list of {count} decoder layers in {type(model).__name__}; use --engine eager or cuda_graph"
    )


@contextmanager
def _forward_of(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """The module calls this inside; libraries that hang a forward on a module get theirs back."""
    override = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if override is None:
            del module.forward
        else:
            module.forward = override
