"""A decoder layer in a decode step of one sequence, as five kernels.

| kernel | file |
| :-- | :-- |
| norm; query, key and value | `gemv_*` |
| norms of the heads, rotary embedding, the cache, attention | `one_row_attention` |
| output of the attention; residual | `gemv_*` |
| norm; gate and up; SwiGLU | `gemv_*` |
| down; residual | `gemv_*` |

Left to the compiler it is 12 to 16, and between two of them the memory rests. Each of the five starts while the one
before it ends, and reads weights until that is done. No compiler is asked, which would choose anew in each process.

Which layers are of this kind is told by their parts, and by running them once beside this form of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarker.kernels.gemv_ends import Ends
from benchmarker.kernels.one_row_attention import Heads, Rotation, one_row_attention
from benchmarker.kernels.one_row_products import Product, product_of

PARTS = {
    "": {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"},
    "self_attn": {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"},
    "mlp": {"gate_proj", "up_proj", "down_proj"},
}
"""Modules of a layer of this kind; others, such as activations, have no weights."""
CLOSE = 0.02
"""Largest difference to what the layer itself adds to its input, relative to that, in 16 bit."""
ROUNDING = 0.002
"""The same relative to the input, for a layer that adds little."""
TRIED_POSITION = 5
"""Position of the token with which a layer is tried; before it the cache holds random numbers."""


@dataclass(frozen=True)
class LayerCache:
    """One layer's part of the cache, as it is stored."""

    key: Tensor
    """[1, positions, key heads, head_dim]; so is the value."""
    value: Tensor


@dataclass(frozen=True)
class OneRowLayer:
    """The layer's products with what each computes besides."""

    joint: Product
    """Query, key and value."""
    heads: Heads
    output: Product
    gate_up: Product
    down: Product
    before_attention: Ends
    before_mlp: Ends

    def __call__(self, hidden: Tensor, cache: LayerCache, rotation: Rotation, lengths: Tensor) -> Tensor:
        """The layer's output for one token, whose key and value are in the cache afterwards.

        Args:
            hidden: [hidden].
            lengths: Filled positions with the new one, [1], int32.
        """
        product = self.joint(hidden, ends=self.before_attention)
        attended = one_row_attention(product, self.heads, rotation, cache.key, cache.value, lengths)
        hidden = self.output(attended, ends=Ends(residual=hidden))
        return self.down(self.gate_up(hidden, ends=self.before_mlp), ends=Ends(residual=hidden))


def one_row_layer(layer: Any) -> OneRowLayer | None:
    """The five kernels of a layer whose linears multiply by this package's kernels; None for a layer of another kind.

    Whether the layer is what its parts look like is for `is_close` to say.
    """
    names = {name for name, _ in layer.named_modules()}
    if not all(name in names and _has_parts(layer.get_submodule(name), parts) for name, parts in PARTS.items()):
        return None
    attention, mlp = layer.self_attn, layer.mlp
    norms = (layer.input_layernorm, layer.post_attention_layernorm, attention.q_norm, attention.k_norm)
    scaling = _scaling(attention)
    if not all(hasattr(norm, "variance_epsilon") for norm in norms) or scaling is None:
        return None
    products = (
        product_of([attention.q_proj, attention.k_proj, attention.v_proj]), product_of([attention.o_proj]),
        product_of([mlp.gate_proj, mlp.up_proj]), product_of([mlp.down_proj]),
    )  # fmt: skip
    joint, output, gate_up, down = products
    if joint is None or output is None or gate_up is None or down is None:
        return None
    epsilon = float(attention.q_norm.variance_epsilon)
    return OneRowLayer(
        joint, Heads(attention.q_norm.weight, attention.k_norm.weight, epsilon, scaling),
        output, gate_up, down,
        norm_ends(layer.input_layernorm), norm_ends(layer.post_attention_layernorm, swiglu=True),
    )  # fmt: skip


def _scaling(attention: Any) -> float | None:
    """The factor of an attention's scores; None for one that names none, or has a window of positions."""
    if getattr(attention, "sliding_window", None) is not None:
        return None
    try:
        return float(attention.scaling)
    except AttributeError:
        return None


def _has_parts(module: nn.Module, parts: set[str]) -> bool:
    """Whether these are the module's parts that hold numbers, with or without an activation beside them."""
    return parts == {name for name, child in module.named_children() if child.state_dict()}


def norm_ends(norm: Any, *, swiglu: bool = False) -> Ends:
    """An RMS norm before a product."""
    return Ends(gain=norm.weight, epsilon=float(norm.variance_epsilon), swiglu=swiglu)


class _Tried:
    """In place of a cache, for the layer that is tried: what it would store, and the positions before it."""

    def __init__(self, key: Tensor, value: Tensor) -> None:
        self.past = key, value
        self.new: tuple[Tensor, Tensor] | None = None

    def update(self, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """The layer's keys and values behind those before it, [1, key heads, positions, head_dim]."""
        self.new = key, value
        past_key, past_value = (past[:, :TRIED_POSITION].transpose(1, 2) for past in self.past)
        return torch.cat((past_key, key), 2), torch.cat((past_value, value), 2)


def is_close(layer: Any, form: OneRowLayer, rotation: Rotation, key_heads: int) -> bool:
    """Whether the form makes what the layer itself makes of a random token at `TRIED_POSITION`, and stores the same."""
    kind, device = layer.input_layernorm.weight.dtype, layer.input_layernorm.weight.device
    head_dim = len(form.heads.query_gain)
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, kind)

    hidden = random(1, 1, len(layer.input_layernorm.weight))
    cache = LayerCache(*(random(1, 2 * TRIED_POSITION, key_heads, head_dim) for _ in range(2)))
    tried = _Tried(cache.key.clone(), cache.value.clone())
    angles = tuple(part[TRIED_POSITION].to(kind).view(1, 1, -1) for part in (rotation.cosines, rotation.sines))
    with torch.no_grad():
        expected = layer(hidden, position_embeddings=angles, attention_mask=None, past_key_values=tried)
        expected = expected if isinstance(expected, Tensor) else expected[0]
        lengths = torch.full((1,), TRIED_POSITION + 1, dtype=torch.int32, device=device)
        made = form(hidden.flatten(), cache, rotation, lengths)
    assert tried.new is not None
    stored = [part[0, TRIED_POSITION] for part in (cache.key, cache.value)]
    return _is_near(made, expected.flatten(), hidden.flatten()) and all(
        _is_near(new, old[0, :, 0], torch.zeros_like(new)) for new, old in zip(stored, tried.new, strict=True)
    )


def _is_near(made: Tensor, expected: Tensor, before: Tensor) -> bool:
    made, expected, before = made.float(), expected.float(), before.float()
    allowed = CLOSE * (expected - before).norm() + ROUNDING * before.norm()
    return bool((made - expected).norm() <= allowed)
