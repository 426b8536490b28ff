"""The compiled decode step with this program's own kernels where they fit, captured as a graph.

For one sequence, and a model whose layers are of the kind that `kernels/one_row_layer.py` knows, nothing of the step is
left to the compiler: it is five kernels a layer.

Not what a user of the libraries gets: `eager`, `cuda_graph` and `compile` are that. A linear that no kernel of ours
takes keeps its library's, and the facts say how many there are of each.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.attention_shape import key_heads
from benchmarker.engines.capture.inductor import BESIDE_OUR_PRODUCTS, ON_GPU, heads_normed_at_once
from benchmarker.engines.decoders.attention import prompt_attention_backend
from benchmarker.engines.decoders.captured_prefill import CapturedPrefillDecoder
from benchmarker.engines.decoders.compile import CompileDecoder, prompt_layer
from benchmarker.engines.decoders.linear_kernels import native_kernels, product_choices
from benchmarker.hardware.device import Device, torch_device
from benchmarker.kernels import optimize
from benchmarker.kernels.one_row_layer import LayerCache
from benchmarker.kernels.one_row_step import OneRowStep, one_row_step
from benchmarker.schema.kernels_used import OWN_ATTENTION, KernelUse, one_row

if TYPE_CHECKING:
    from torch import Tensor

    from benchmarker.engines.decoders.cache_shape import Shape
    from benchmarker.engines.decoders.static_cache import SequenceLengths, StaticKVCache
    from benchmarker.kernels.one_row_attention import Rotation
    from benchmarker.schema.engine_facts import StepFacts


class NativeDecoder(CompileDecoder):
    """The compiled decoder with the linears of the model replaced, from the first shape on."""

    name = "native"
    native_attention = True
    _replaced: tuple[KernelUse, ...] | None = None
    _one_row: OneRowStep | None = None
    """The step of one sequence without the compiler; None for models that it is not for."""
    _rotation: Rotation | None = None
    """Rotary embedding at the positions of the shape; None for a shape that steps by the compiler's layer."""

    def _prepare(self, batch: int, length: int) -> tuple[Shape, bool]:
        """Set a shape up as `CompileDecoder` does, the first time after replacing the linears: that is set-up too."""
        if self._replaced is None:
            keep_kernels_beside_inductors(self._device)
            self._replaced = native_kernels(self._model, optimize(self._model))
            self._one_row = one_row_step(self._model, key_heads(self._model.config.get_text_config(decoder=True)))
        if self._shape is None or self._shape.tokens.shape != (batch, length):
            step = self._one_row if batch == 1 else None
            self._rotation = step.rotation(length) if step else None
        return super()._prepare(batch, length)

    def _decode(self, token: Tensor, cache: StaticKVCache) -> tuple[Tensor, Tensor]:
        """See `decode_step`."""
        if self._one_row is None or self._rotation is None:
            return super()._decode(token, cache)
        layers: Any = cache.layers.layers
        caches = [LayerCache(layer.stored_keys, layer.stored_values) for layer in layers]
        step = self._one_row(token, caches, self._rotation, cache.sequence_lengths.lengths)
        cache.advance()
        return step

    def _is_one_row(self) -> bool:
        """Whether the shape that ran last steps without the compiler."""
        return self._shape is not None and self._rotation is not None

    def _settings_on_gpu(self) -> dict[str, Any]:
        has_products = any(use.origin == "inductor" for use in self._linear_kernels())
        return ON_GPU if has_products else BESIDE_OUR_PRODUCTS

    def _needs_compiler(self) -> bool:
        return not self._is_one_row()

    def _attention(self, shape: Shape) -> str:
        return OWN_ATTENTION if self._is_one_row() else super()._attention(shape)

    def _linear_kernels(self) -> tuple[KernelUse, ...]:
        return self._replaced or ()

    def _kernels_used(self) -> tuple[KernelUse, ...]:
        uses = super()._kernels_used()
        return one_row(uses) if self._is_one_row() else uses

    def step_facts(self) -> StepFacts | None:
        """See TokenSource.step_facts; with how the products of several rows are made, the prompt's too."""
        facts = super().step_facts()
        if facts is None or self._shape is None:
            return facts
        batch = len(self._shape.tokens)
        rows = {batch, *(batch * length for length in self._shape.prefills)}
        return facts.model_copy(update={"products": product_choices(rows)})


class CapturedNativeDecoder(CapturedPrefillDecoder, NativeDecoder):
    """The native decoder whose prefill is a captured graph of one compiled layer: the option `prefill=captured`."""

    def _prompt_step(
        self, ids: Tensor, cache: StaticKVCache, visible: SequenceLengths, last: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Put a padded prompt into the cache by the compiled layer; see `CapturedPrefillDecoder._prompt_step`."""
        with self._tuning():
            with prompt_attention_backend(self._model), heads_normed_at_once():
                hidden, norm = self._through_layers(prompt_layer, ids, cache, visible)
            return self._chosen(norm, hidden.index_select(1, last))


def keep_kernels_beside_inductors(device: Device) -> None:
    """Have Triton keep our own kernels in the folder where inductor has it keep the compiler's.

    Inductor names that folder to Triton once it compiles a kernel. In a process that finds all of them compiled it
    names none, and what the process before had put there of ours would be compiled again.
    """
    from torch._inductor.runtime.cache_dir_utils import triton_cache_dir

    os.environ.setdefault("TRITON_CACHE_DIR", triton_cache_dir(torch_device(device).index or 0))
