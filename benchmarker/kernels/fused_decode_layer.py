"""Fused decode layer: a decoder layer for one sequence as five kernels, without the compiler.

| kernel | file |
| :-- | :-- |
| norm; query, key and value; bias | `gemv_*` |
| norms of heads, if any; rotary embedding, KV cache, attention | `fused_decode_attention` |
| attention output; residual | `gemv_*` |
| norm; gate and up; SwiGLU | `gemv_*` |
| down; residual | `gemv_*` |

torch.compile makes 12 to 16 kernels of a layer, between which no weights are read. Each of the five kernels starts
while the previous kernel ends, and prefetches weights. A layer is supported if its modules are known, if they behave as
expected, and if one run of the layer and one run of the fused layer have the same result.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from benchmarker.kernels import gemv_dense, gemv_gptq, gemv_nf4
from benchmarker.kernels.decode_attention import is_tile
from benchmarker.kernels.fuse_swiglu import by_operators, reproduces
from benchmarker.kernels.fused_decode_attention import Heads, Rotation, fused_decode_attention
from benchmarker.kernels.gemv_fusion import GemvFusion
from benchmarker.kernels.gemv_gptq import Matrix
from benchmarker.kernels.launch_support import is_aligned
from benchmarker.kernels.linear_dispatch import kernel_of

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
PARTS = {
    "": ({"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"},),
    "self_attn": (ATTENTION, ATTENTION | {"q_norm", "k_norm"}),
    "mlp": ({"gate_proj", "up_proj", "down_proj"},),
}
"""Sets of the modules with parameters in a supported layer, by parent: Qwen3 has norms of heads, Llama does not."""
CUTS = ("sliding_window", "attn_logit_softcapping")
"""Attention features that the short trial run cannot detect. A layer that uses one keeps the library's code."""
CLOSE = 0.02  # Largest relative difference of the layer's update (output minus input) that passes, in 16 bits.
ROUNDING = 0.002  # Difference relative to the input that also passes, for layers with a small update.
TRIAL_POSITION = 5  # Position of the trial token; the cache before it holds random numbers.


@dataclass(frozen=True)
class LayerCache:
    key: Tensor  # [1, positions, key heads, head_dim]; `value` has the same layout.
    value: Tensor


@dataclass(frozen=True)
class FusedDecodeLayer:
    """The five kernels of a layer: GEMVs with fused operations, and attention."""

    joint: Product  # GEMV of query, key and value.
    heads: Heads
    output: Product
    gate_up: Product
    down: Product
    before_attention: GemvFusion
    before_mlp: GemvFusion

    def __call__(self, hidden: Tensor, cache: LayerCache, rotation: Rotation, lengths: Tensor) -> Tensor:
        """Return the layer's output for one token, [hidden], and append its key and value to the cache."""
        product = self.joint(hidden, fusion=self.before_attention)
        attended = fused_decode_attention(product, self.heads, rotation, cache.key, cache.value, lengths)
        hidden = self.output(attended, fusion=GemvFusion(residual=hidden))
        return self.down(self.gate_up(hidden, fusion=self.before_mlp), fusion=GemvFusion(residual=hidden))


def fused_decode_layer(layer: Any, key_heads: int, *, quantized: bool = True) -> FusedDecodeLayer | None:
    """Return the five kernels of a layer; None if an unsupported property is found that a trial token may not show.

    Args:
        quantized: Quantize the activations of W8A8 linears.
    """
    names = {name for name, _ in layer.named_modules()}
    if not all(name in names and _has_parts(layer.get_submodule(name), parts) for name, parts in PARTS.items()):
        return None
    attention, mlp = layer.self_attn, layer.mlp
    inputs = [attention.q_proj, attention.k_proj, attention.v_proj]
    biases = [linear.bias for linear in inputs if linear.bias is not None]
    after = [attention.o_proj], [mlp.gate_proj, mlp.up_proj], [mlp.down_proj]
    products = (
        product_of(inputs, biased=len(biases) == len(inputs), quantized=quantized),
        *(product_of(linears, quantized=quantized) for linears in after),
    )
    joint, output, gate_up, down = products
    if joint is None or output is None or gate_up is None or down is None:
        return None
    norms = [layer.input_layernorm, layer.post_attention_layernorm, *_head_norms(attention)]
    vectors = [*(norm.weight for norm in norms), *biases]
    if len({(vector.dtype, vector.device) for vector in vectors}) > 1 or not all(map(is_rms_norm, norms)):
        return None
    heads = _heads(attention, key_heads)
    if heads is None or not reproduces(mlp, by_operators, like=layer.post_attention_layernorm.weight):
        return None
    return FusedDecodeLayer(
        joint, heads, output, gate_up, down,
        norm_fusion(layer.input_layernorm, bias=torch.cat(biases).detach() if biases else None),
        norm_fusion(layer.post_attention_layernorm, swiglu=True),
    )  # fmt: skip


def _has_parts(module: nn.Module, supported: Sequence[set[str]]) -> bool:
    holding = {name for name, child in module.named_children() if _numbers(child)}
    return holding in supported and not _numbers(module, recurse=False)


def _head_norms(attention: Any) -> list[Any]:
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    return [norm for norm in norms if hasattr(norm, "weight")]


def _numbers(module: nn.Module, *, recurse: bool = True) -> list[Tensor]:
    return [*module.parameters(recurse=recurse), *module.buffers(recurse=recurse)]


def is_rms_norm(norm: Any) -> bool:
    """Return True if a norm computes x / rms(x) * weight and nothing else.

    Some norms subtract the mean, so the mean of the test vector is not 0; others add 1 to the weight.
    """
    if not hasattr(norm, "variance_epsilon"):
        return False
    gain = norm.weight
    hidden = torch.linspace(-1, 3, len(gain), dtype=gain.dtype, device=gain.device)
    with torch.no_grad():
        normed = norm(hidden.view(1, 1, -1)).flatten()
        factor = torch.rsqrt(hidden.float().square().mean() + norm.variance_epsilon)
        return _is_near(normed, hidden.float() * factor * gain.float(), torch.zeros_like(normed))


def _heads(attention: Any, key_heads: int) -> Heads | None:
    norms, scaling = _head_norms(attention), _scaling(attention)
    head_dim = len(norms[0].weight) if norms else attention.head_dim
    queries, keys, values = (linear.out_features for linear in (attention.q_proj, attention.k_proj, attention.v_proj))
    is_grouped = keys == values == key_heads * head_dim and queries % keys == 0
    is_known = is_tile(head_dim) and is_grouped and attention.o_proj.in_features == queries
    if scaling is None or not is_known:
        return None
    if not norms:
        return Heads(None, None, 0.0, scaling, head_dim)
    query_norm, key_norm = norms
    epsilon = float(query_norm.variance_epsilon)
    are_alike = len(key_norm.weight) == head_dim and epsilon == key_norm.variance_epsilon
    return Heads(query_norm.weight, key_norm.weight, epsilon, scaling, head_dim) if are_alike else None


def _scaling(attention: Any) -> float | None:
    if any(getattr(attention, name, None) is not None for name in CUTS):
        return None
    # Ministral 3 scales queries by their position, from about position 8,192 on.
    if "position_ids" in inspect.signature(attention.forward).parameters:
        return None
    try:
        scaling = attention.scaling
    except AttributeError:
        return None
    return scaling if isinstance(scaling, float) else None


def norm_fusion(norm: Any, *, swiglu: bool = False, bias: Tensor | None = None) -> GemvFusion:
    """Return the fusion of a GEMV with the RMS norm of its input and with a bias. Unaligned weights are copied."""
    gain = norm.weight if is_aligned(norm.weight) else norm.weight.detach().clone()
    return GemvFusion(gain=gain, epsilon=float(norm.variance_epsilon), residual=bias, swiglu=swiglu)


class _TrialCache:
    def __init__(self, key: Tensor, value: Tensor) -> None:
        self.past = key, value
        self.new: tuple[Tensor, Tensor] | None = None

    def update(self, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.new = key, value
        past_key, past_value = (past[:, :TRIAL_POSITION].transpose(1, 2) for past in self.past)
        return torch.cat((past_key, key), 2), torch.cat((past_value, value), 2)


def is_close(layer: Any, form: FusedDecodeLayer, rotation: Rotation, key_heads: int) -> bool:
    """Return True if `form` computes the layer's output, key and value for one random token; False for NaN."""
    dtype, device = layer.input_layernorm.weight.dtype, layer.input_layernorm.weight.device
    head_dim = form.heads.head_dim
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    hidden = random(1, 1, len(layer.input_layernorm.weight))
    cache = LayerCache(*(random(1, 2 * TRIAL_POSITION, key_heads, head_dim) for _ in range(2)))
    tried = _TrialCache(cache.key.clone(), cache.value.clone())
    # Written before the layer runs: the fused kernels read the lengths before the previous kernel ends.
    lengths = torch.full((1,), TRIAL_POSITION + 1, dtype=torch.int32, device=device)
    angles = tuple(part[TRIAL_POSITION].to(dtype).view(1, 1, -1) for part in (rotation.cosines, rotation.sines))
    with torch.no_grad():
        expected = layer(hidden, position_embeddings=angles, attention_mask=None, past_key_values=tried)
        expected = expected if isinstance(expected, Tensor) else expected[0]
        made = form(hidden.flatten(), cache, rotation, lengths)
    if tried.new is None:
        return False
    stored = [part[0, TRIAL_POSITION] for part in (cache.key, cache.value)]
    return _is_near(made, expected.flatten(), hidden.flatten()) and all(
        _is_near(new, old[0, :, 0], torch.zeros_like(new)) for new, old in zip(stored, tried.new, strict=True)
    )


def _is_near(made: Tensor, expected: Tensor, before: Tensor) -> bool:
    made, expected, before = made.float(), expected.float(), before.float()
    allowed = CLOSE * (expected - before).norm() + ROUNDING * before.norm()
    return bool((made - expected).norm() <= allowed)


class Product(Protocol):
    def __call__(self, hidden: Tensor, *, fusion: GemvFusion) -> Tensor:
        """Return the concatenated outputs of all linears for a vector, [in], with the `fusion`."""


GPTQ_STEP = 32  # If several matrices share a GEMV, all but the last must have a multiple of 32 outputs.


def product_of(linears: Sequence[Any], *, biased: bool = False, quantized: bool = True) -> Product | None:
    """Return a function that computes linears with the same input in one kernel; None if no kernel supports them.

    The function adds no bias. Linears may have a bias only if `biased`: the caller adds it by `GemvFusion`.
    """
    kernels = {kernel_of(linear) for linear in linears}
    if len(kernels) > 1 or None in kernels:
        return None
    if any((linear.bias is not None) != biased for linear in linears):
        return None
    if kernels == {"gemv_gptq"}:
        return _gptq(linears)
    linear = _whole(linears)
    if linear is None:
        return None
    if kernels == {"gemv_nf4"}:
        state = linear.weight.quant_state
        return partial(gemv_nf4.launch, packed=linear.weight, scales=state.absmax, codebook=state.code)
    weights, scales = gemv_dense.as_rows(linear)
    is_quantized = quantized and kernels == {"gemv_scaled"}
    return partial(gemv_dense.launch, weights=weights, scales=scales, quantized=is_quantized)


def _gptq(linears: Sequence[Any]) -> Product | None:
    layouts = {(len(linear.qweight), len(linear.scales), linear.scales.dtype) for linear in linears}
    whole = _whole(linears)
    if len(layouts) > 1 or (whole is None and any(linear.out_features % GPTQ_STEP for linear in linears[:-1])):
        return None
    matrices = _matrices(linears if whole is None else [whole])
    # The words are columns of a larger matrix that has other columns too, or another order of columns.
    if not all(matrix.words.is_contiguous() for matrix in matrices):
        return None
    return partial(_gptq_product, matrices=matrices, gate_up=_matrices(linears))


def _matrices(linears: Sequence[Any]) -> list[Matrix]:
    are_zeros_read = any(linear.packed_form != "int4 by group" for linear in linears)
    return [Matrix(linear.qweight, linear.qzeros if are_zeros_read else None, linear.scales) for linear in linears]


def _gptq_product(hidden: Tensor, *, fusion: GemvFusion, matrices: list[Matrix], gate_up: list[Matrix]) -> Tensor:
    return gemv_gptq.launch(hidden, gate_up if fusion.swiglu else matrices, fusion)


def _whole(linears: Sequence[Any]) -> Any | None:
    if len(linears) == 1:
        return linears[0]
    parts: list[Any] = [getattr(linear, "fused_slice", None) for linear in linears]
    if None in parts or any(part.fused is not parts[0].fused for part in parts):
        return None
    starts = [part.start for part in parts]
    is_all = starts[0] == 0 and parts[-1].is_last and starts == sorted(starts)
    has_all = sum(linear.out_features for linear in linears) == parts[0].fused.linear.out_features
    return parts[0].fused.linear if is_all and has_all else None
