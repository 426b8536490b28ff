"""Linear layers of benchmarker's own for compressed-tensors checkpoints that transformers would unpack.

transformers has a kernel for FP8 weights on some GPUs. It unpacks all other schemes to 16 bits in the first forward
pass. W4A16 layers become `Int4Linear` and W8A8 layers `ScaledLinear` here, which keep the checkpoint's bytes. Schemes
without a layer stay with the library: other bits, static scales of activations, groups in the order of activations.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

WORD_CODES = 8  # Codes of 4 bits in a word.


def replace_compressed(model: PreTrainedModel) -> Counter[str]:
    """Replace linear layers by `Int4Linear` or `ScaledLinear` if possible; return the number of layers by class."""
    replaced: Counter[str] = Counter()
    for name, module in list(model.named_modules()):
        own = _own_linear(module)
        if own is not None:
            model.set_submodule(name, own.eval())
            replaced[type(own).__name__] += 1
    hook: Any = getattr(model, "ct_decompress_hook", None)
    if hook is not None and not any(hasattr(module, "quantization_scheme") for module in model.modules()):
        # The hook would wrap every module in code that torch.compile cannot trace.
        hook.remove()
        del model.ct_decompress_hook
    return replaced


def _own_linear(module: Any) -> nn.Module | None:
    scheme: Any = getattr(module, "quantization_scheme", None)
    weights = getattr(scheme, "weights", None)
    if weights is None or hasattr(module, "weight_g_idx"):
        return None
    if scheme.input_activations is None:
        return _int4_linear(module, weights)
    return _scaled_linear(module, weights, scheme.input_activations)


def _int4_linear(module: Any, weights: Any) -> nn.Module | None:
    is_int4 = weights.type == "int" and weights.num_bits == 4 and weights.strategy in ("group", "channel")
    words = getattr(module, "weight_packed", None)
    if not is_int4 or words is None or words.shape[1] * WORD_CODES != module.in_features:
        return None
    if module.out_features % WORD_CODES:
        return None
    from benchmarker.kernels.int4_linear import from_compressed

    zeros = getattr(module, "weight_zero_point", None)
    return from_compressed(words.data, module.weight_scale.data, None if zeros is None else zeros.data, module.bias)


def _scaled_linear(module: Any, weights: Any, activations: Any) -> nn.Module | None:
    by_row = weights.strategy == "channel" and activations.strategy == "token" and activations.dynamic is True
    is_8bit = weights.num_bits == activations.num_bits == 8 and weights.type == activations.type
    is_plain = by_row and is_8bit and weights.symmetric and activations.symmetric
    weight = getattr(module, "weight", None)
    if not is_plain or weight is None or weight.element_size() != 1:
        return None
    from benchmarker.kernels.scaled_linear import ScaledLinear

    return ScaledLinear(weight.data, module.weight_scale.data, module.bias)
