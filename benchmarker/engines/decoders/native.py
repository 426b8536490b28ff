"""The compiled decode step with this program's own kernels for every layer that they support, captured as a graph.

At batch 1, if `kernels/fused_decode_layer.py` supports the model's layers, the whole step consists of our kernels, five
per layer, and torch.compile is not used. A linear that none of our kernels supports keeps its library's kernel.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from torch import Tensor, nn
from transformers import PreTrainedModel

from benchmarker.checkpoints.read_model import key_heads
from benchmarker.engines.decoders.compile import BESIDE_OUR_PRODUCTS, ON_GPU, CompiledStep, prompt_layer, short_sums
from benchmarker.engines.decoders.graph_capture import Capture, capture_for
from benchmarker.engines.decoders.prefill_decode import captured_experts
from benchmarker.engines.decoders.static_decoder import StaticCacheDecoder
from benchmarker.engines.decoders.static_kv_cache import SequenceLengths, StaticKVCache, cache_attention
from benchmarker.engines.decoders.torch_engine import expert_modules, kernels_by_class
from benchmarker.hardware.device import Device
from benchmarker.kernels import Replacement, optimize
from benchmarker.kernels.fused_decode_attention import Rotation
from benchmarker.kernels.fused_decode_layer import LayerCache
from benchmarker.kernels.fused_decode_step import FusedDecodeStep, fused_decode_step
from benchmarker.quantization.coverage import module_kind
from benchmarker.quantization.load import has_low_bits, is_linear, is_narrow
from benchmarker.schema.model import (
    OWN_ATTENTION,
    KernelUse,
    ModuleKernel,
    ModuleKind,
    Origin,
    ProductChoice,
    Purpose,
    one_row,
)

PURPOSES: dict[str, Purpose] = {
    "fuse_qkv_gate_up": "joined_linears",
    "gemv_swiglu": "swiglu",
    "packed_matmul": "packed_rows",
}
"""Purpose of each of our kernels that does more than multiply by the weights of one linear."""


def native_decoder(
    model: PreTrainedModel,
    device: Device,
    *,
    prefill: Literal["plain", "captured"] = "captured",
    capture: Capture | None = None,
) -> StaticCacheDecoder:
    capture = capture or capture_for(device)
    step = NativeStep(model, device, is_captured=capture is not None)
    return StaticCacheDecoder(step, device, capture=capture, captured_prefill=prefill == "captured")


class NativeStep(CompiledStep):
    """The compiled decode step of a model after `prepare` has replaced its linears with our kernels."""

    name = "native"
    native_attention = True

    def __init__(self, model: PreTrainedModel, device: Device, *, is_captured: bool) -> None:
        super().__init__(model, device, is_captured=is_captured)
        self._device = device
        self._replaced: tuple[KernelUse, ...] | None = None
        self._kernels: dict[int, str] = {}
        """Our kernel of each linear, by the module's id."""
        self._modules: tuple[ModuleKernel, ...] = ()
        self._one_row: FusedDecodeStep | None = None
        """Fused decode step for batch 1, which needs no compiler; None if it does not support the model."""
        self._rotation: Rotation | None = None
        """Rotary embedding for all positions of the cache; None if the current shape runs the compiled layer."""

    def prepare(self, batch: int, length: int) -> None:
        if self._replaced is None:
            keep_kernels_beside_inductors(self._device)
            replacements = optimize(self.model)
            self._replaced = native_kernels(self.model, replacements)
            self._kernels = {
                id(module): replacement.kernel
                for replacement in replacements
                if replacement.kernel not in PURPOSES
                for module in replacement.modules
            }
            self._one_row = fused_decode_step(self.model, key_heads(self.model.config.get_text_config(decoder=True)))
        self._modules = module_kernels(self.model, self._kernels, captured_experts(self.model, batch))
        # In a cache longer than the sliding window, layers store rings, which the fused step does not support.
        window = getattr(self.model.config.get_text_config(decoder=True), "sliding_window", None)
        step = self._one_row if batch == 1 and (window is None or length <= window) else None
        self._rotation = step.rotation(length) if step else None

    def run(self, token: Tensor, cache: StaticKVCache) -> tuple[Tensor, Tensor]:
        if self._one_row is None or self._rotation is None:
            return super().run(token, cache)
        layers: Any = cache.layers.layers
        caches = [LayerCache(layer.stored_keys, layer.stored_values) for layer in layers]
        step = self._one_row(token, caches, self._rotation, cache.sequence_lengths.lengths)
        cache.advance()
        return step

    def run_prompt(
        self, ids: Tensor, cache: StaticKVCache, visible: SequenceLengths, last: Tensor
    ) -> tuple[Tensor, Tensor]:
        with self.tuning():
            with cache_attention(self.model), short_sums():
                hidden, norm = self.through_layers(prompt_layer, ids, cache, visible)
            return self.run_head(norm, hidden.index_select(1, last))

    @property
    def needs_compiler(self) -> bool:
        return self._rotation is None

    def settings_on_gpu(self) -> dict[str, Any]:
        # With ON_GPU, inductor reads an expert's weights inside the product; else it copies them first (19 of 33 ms a
        # token for eight sequences of Qwen3-30B-A3B on an H100).
        has_products = any(use.origin == "inductor" for use in self.linear_kernels())
        return ON_GPU if has_products or expert_modules(self.model) else BESIDE_OUR_PRODUCTS

    def attention(self, cache: StaticKVCache) -> str:
        return cache.attention(native=True) if self.needs_compiler else OWN_ATTENTION

    def linear_kernels(self) -> tuple[KernelUse, ...]:
        return self._replaced or ()

    def kernels_used(self, attention: str) -> tuple[KernelUse, ...]:
        uses = super().kernels_used(attention)
        return uses if self.needs_compiler else one_row(uses)

    def products(self, rows: Collection[int]) -> tuple[ProductChoice, ...]:
        return product_choices(rows)

    def facts(self, *, has_shape: bool) -> dict[str, Any]:
        return super().facts(has_shape=has_shape) | {"modules": self._modules}


def keep_kernels_beside_inductors(device: Device) -> None:
    """Make Triton cache our kernels in inductor's folder.

    Inductor changes Triton's folder when it compiles its first kernel, and would make Triton compile ours again.
    """
    from torch._inductor.runtime.cache_dir_utils import triton_cache_dir

    os.environ.setdefault("TRITON_CACHE_DIR", triton_cache_dir(device.indices[0] if device.indices else 0))


def native_kernels(model: nn.Module, replacements: Sequence[Replacement]) -> tuple[KernelUse, ...]:
    """Count the linears that each of our kernels replaced, and the libraries' linears that remain."""
    linears = [module for module in model.modules() if is_linear(module)]
    ours = []
    for replacement in replacements:
        purpose = PURPOSES.get(replacement.kernel, "linear")
        counts = purpose in ("linear", "packed_rows")
        ours.append(
            KernelUse(
                purpose=purpose,
                origin="benchmarker",
                name=replacement.kernel,
                covered=len(replacement.modules) if counts else None,
                total=len(linears) if counts else None,
            )
        )
    replaced = {id(module) for replacement in replacements for module in replacement.modules}
    rest = [module for module in linears if id(module) not in replaced]
    return (*ours, *kernels_by_class(rest, total=len(linears), compiled=True))


def module_kernels(model: PreTrainedModel, kernels: Mapping[int, str], experts: str | None) -> tuple[ModuleKernel, ...]:
    """Count the modules whose weights a decode step multiplies, by kind and kernel.

    Args:
        kernels: This program's kernel of each linear, by the module's id.
        experts: transformers' implementation of fused experts.
    """
    modules, head = dict(model.named_modules()), model.get_output_embeddings()
    fused = {id(module) for module in expert_modules(model)}
    counts: Counter[tuple[ModuleKind, str, Origin, bool]] = Counter()
    for path, module in modules.items():
        kind, rows = module_kind(modules, path, head)
        own = [parameter for parameter in module.parameters(recurse=False) if parameter.ndim > 1]
        name = type(module).__name__
        origin: Origin = "library"
        if id(module) in kernels:
            name, origin = kernels[id(module)], "benchmarker"
        elif id(module) in fused:
            name = str(experts)
        elif name == "Linear" or (kind == "router" and own):
            origin = "inductor"
        elif not is_linear(module):
            continue
        if rows == 1:
            is_16_bit = not is_narrow(module) if is_linear(module) else not any(map(has_low_bits, own))
            counts[kind, name, origin, is_16_bit] += 1
    return tuple(
        ModuleKernel(kind=kind, kernel=name, origin=origin, is_16_bit=is_16_bit, modules=count)
        for (kind, name, origin, is_16_bit), count in counts.items()
    )


def product_choices(rows: Collection[int]) -> tuple[ProductChoice, ...]:
    """Return the GEMM kernels that autotuning chose in this process for inputs with these numbers of rows."""
    from benchmarker.kernels.gemm_autotune import choices

    return tuple(
        ProductChoice(**{name: getattr(choice, name) for name in ProductChoice.model_fields})
        for choice in choices()
        if choice.rows in rows
    )
