"""Linear layers of benchmarker's own for checkpoints that transformers would unpack, or run with a hub's kernels.

transformers has a layer for FP8 weights on some GPUs, which torch 2.11 cannot compile, and unpacks all other schemes to
16 bits in the first forward pass. W4A16 layers become `Int4Linear`, and W8A8 and FP8 layers `ScaledLinear`, which keep
the checkpoint's bytes. Schemes without a layer stay with the library: other bits, static scales of int8 activations,
groups in the order of activations. FP8 layers in blocks become `BlockScaledLinear` on Hopper, without a hub's kernels.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from benchmarker.quantization.base import FP8_CAPABILITY, TorchGpu, torch_gpu

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

WORD_CODES = 8  # Codes of 4 bits in a word.
FP8_BLOCK_CAPABILITY = (9, 0)  # cuBLAS has torch's block-scaled product on Hopper only.


def multiplies_fp8_blocks(gpu: TorchGpu | None) -> bool:
    return gpu is not None and gpu.nvidia and gpu.capability == FP8_BLOCK_CAPABILITY


def lacks_fp8(gpu: TorchGpu | None) -> bool:
    """Return whether the device is an NVIDIA GPU for which torch has no FP8 product."""
    return gpu is not None and gpu.nvidia and gpu.capability < FP8_CAPABILITY


def replace_stored(model: PreTrainedModel) -> Counter[str]:
    """Replace linear layers by layers of benchmarker if possible; return the number of layers by class."""
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


def has_fp8_blocks(model: PreTrainedModel) -> bool:
    """Return whether the model still has layers of transformers that compute with packed FP8 weights."""
    names = ("FP8Linear", "FP8GroupedLinear", "FP8Experts")
    return any(
        type(module).__name__ in names and any(each.element_size() == 1 for each in module.parameters())
        for module in model.modules()
    )


def _own_linear(module: Any) -> nn.Module | None:
    if type(module).__name__ == "FP8Linear":
        return _block_linear(module)
    if type(module).__name__ == "CompressedTensorsFP8Linear":
        from benchmarker.kernels.scaled_linear import ScaledLinear

        return ScaledLinear(module.weight.data, module.weight_scale.data, module.bias)
    scheme: Any = getattr(module, "quantization_scheme", None)
    weights = getattr(scheme, "weights", None)
    if weights is None or hasattr(module, "weight_g_idx"):
        return None
    if scheme.input_activations is None:
        return _int4_linear(module, weights)
    return _scaled_linear(module, weights, scheme.input_activations)


def _int4_linear(module: Any, weights: Any) -> nn.Module | None:
    is_int4 = weights.type == "int" and weights.num_bits == 4 and weights.strategy in ("group", "channel")
    words: Any = getattr(module, "weight_packed", None)
    fits = words is not None and words.shape[1] * WORD_CODES == module.in_features
    if not is_int4 or not fits or module.out_features % WORD_CODES:
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
    from benchmarker.kernels.scaled_linear import ScaledLinear, multiplies_fp8

    if weights.type == "float" and (lacks_fp8(torch_gpu(str(weight.device))) or not multiplies_fp8(weight.device.type)):
        return None
    return ScaledLinear(weight.data, module.weight_scale.data, module.bias)


def _block_linear(module: Any) -> nn.Module | None:
    from benchmarker.kernels.scaled_linear import BLOCK, BlockScaledLinear

    is_plain = tuple(module.block_size or ()) == (BLOCK, BLOCK) and module.activation_scheme == "dynamic"
    weight, scale = module.weight, module.weight_scale_inv
    fits = weight.element_size() == 1 and scale.element_size() == 4 and not any(size % BLOCK for size in weight.shape)
    if not is_plain or not fits or not multiplies_fp8_blocks(torch_gpu(str(weight.device))):
        return None
    return BlockScaledLinear(weight.data, scale.data, module.bias)
