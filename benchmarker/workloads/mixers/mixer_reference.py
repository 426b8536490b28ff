"""Random inputs of mixers, mixers in float64, and the errors of one call's output and gradients relative to them.

Queries, keys, values, gates and the output's gradient are normal: the same numbers for every mixer before its own
scaling. Linear attention applies its feature map to queries and keys. The delta rule scales them to length 1; its decay
is sigmoid(x + 4), so that half of the tokens keep more than 98 % of the state, and its strength is sigmoid(x). All of
this happens before timing.

The reference is the recurrence of a mixer's paper, one token after the other, up to 512 positions. A longer sequence is
compared with chunks in float64, whose first 512 positions must equal the recurrence. Heads are independent, so only the
first and the last head of the last sequence are compared, at every position. Softmax is compared as in the workload
attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import WrongResultError
from benchmarker.workloads.attention.attention_bench import by_formula
from benchmarker.workloads.attention.attention_bench import check as check_attention
from benchmarker.workloads.mixers.mixer import LINEAR, Layout, Mixer, MixerImplementation, softmax_shape
from benchmarker.workloads.mixers.mixer_variants import EPSILON, chunked, head_decay
from benchmarker.workloads.mixers.record import MixersTensorError
from benchmarker.workloads.mixers.spec import MixerShape
from benchmarker.workloads.operation.operation_call import (
    GRADIENT_NAMES,
    CallInputs,
    Results,
    check_finite,
    hash_inputs,
    relative_error,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GATE_OFFSET = 4.0
TOLERANCES = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}
GATE_FACTOR = 3.0
"""Factor of the tolerance for decays and strengths: their gradients are sums in which large numbers cancel."""
RECURRENCE_LENGTH = 512
REFERENCE_DISTANCE = 1e-9
"""Largest distance between the recurrence and the chunks."""
COMPARED_HEADS = 2


def input_bytes(mixer: Mixer, shape: MixerShape) -> int:
    numbers = 2 * shape.head_dim + shape.value_dim * (1 + shape.is_backward)
    gate = 4 + shape.element_bytes if mixer.is_gated_delta else 0
    return shape.tokens * shape.heads * (numbers * shape.element_bytes + gate)


def make_inputs(mixer: Mixer, shape: MixerShape, device: str, *, seed: int, layout: Layout) -> CallInputs:
    import torch
    from torch.nn.functional import logsigmoid

    dtype: torch.dtype = getattr(torch, shape.dtype)
    query, key, value, gate, strength, *gradients = _random(shape, device, seed)
    named = {"q": scaled(query, mixer, shape), "k": scaled(key, mixer, shape), "v": value}
    named = {name: tensor.to(dtype) for name, tensor in named.items()}
    if mixer.is_gated_delta:
        named |= {"g": logsigmoid(gate + GATE_OFFSET), "beta": strength.sigmoid().to(dtype)}
    if layout == "heads first":
        named = {name: tensor.transpose(1, 2).contiguous() for name, tensor in named.items()}
        gradients = [tensor.transpose(1, 2).contiguous() for tensor in gradients]
    for tensor in named.values():
        tensor.requires_grad_(shape.is_backward)
    return CallInputs(named, gradients[0].to(dtype) if gradients else None)


def inputs_sha256(shape: MixerShape, device: str, *, seed: int) -> str:
    """Return the SHA-256 of shape, seed and first random numbers: the same for every mixer and type."""
    return hash_inputs((*shape._replace(dtype="float32"), seed), _random(shape, device, seed))


def scaled(tensor: Tensor, mixer: Mixer, shape: MixerShape) -> Tensor:
    """Return queries or keys as the mixer takes them: of length 1, or after the feature map."""
    from torch.nn.functional import elu, normalize

    if mixer.is_gated_delta:
        return normalize(tensor.float(), dim=-1)
    return elu(tensor) + 1 if mixer is LINEAR and shape.feature_map == "elu" else tensor


def _random(shape: MixerShape, device: str, seed: int) -> list[Tensor]:
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    rows = shape.batch_size, shape.seq_len, shape.heads
    keys, values = (*rows, shape.head_dim), (*rows, shape.value_dim)
    sizes = [keys, keys, values, rows, rows, *[values] * shape.is_backward]
    return [torch.randn(size, generator=generator, device=device) for size in sizes]


def checked_errors(
    results: Results, implementation: MixerImplementation, inputs: CallInputs, shape: MixerShape, suffix: str = ""
) -> tuple[MixersTensorError, ...]:
    """Return the error of the output and of the gradients. Raises WrongResultError, with a suffix, if one is above its
    tolerance or holds a number that is not finite."""
    check_finite(results)
    if implementation.is_softmax and shape.value_dim == shape.head_dim:
        checked = check_attention(results, inputs, softmax_shape(shape))
        errors = {tensor.tensor: tensor.error for tensor in checked.tensors}
    else:
        layout = implementation.layout
        expected = reference(implementation.mixer, inputs, shape, layout)
        errors = {name: relative_error(two_heads(results[name], layout), exact) for name, exact in expected.items()}
    tensors = []
    for name, error in errors.items():
        tolerance = TOLERANCES[shape.dtype] * (GATE_FACTOR if name in ("dg", "dbeta") else 1.0)
        if error > tolerance:
            problem = f"{name} is off by {error:.2g} of its size from float64; {tolerance:.0e} is allowed"
            raise WrongResultError(f"wrong result{suffix}: {problem}")
        tensors.append(MixersTensorError(tensor=name, error=error, tolerance=tolerance))
    return tuple(tensors)


def two_heads(tensor: Tensor, layout: Layout) -> Tensor:
    """Return the first and the last head of the last sequence, [2, length, ..], or the only head."""
    heads_first = tensor if layout == "heads first" else tensor.transpose(1, 2)
    last = heads_first[-1]
    return last[:: max(1, last.shape[0] - 1)][:COMPARED_HEADS]


def reference(mixer: Mixer, inputs: CallInputs, shape: MixerShape, layout: Layout) -> Results:
    """Return output and gradients of two heads, [2, length, ..]."""
    import torch

    leaves = {
        name: two_heads(tensor.detach(), layout).double().requires_grad_(shape.is_backward)
        for name, tensor in inputs.named.items()
    }
    decay = head_decay(mixer, shape.heads, inputs.named["q"].device)
    decay = None if decay is None else decay[:: max(1, shape.heads - 1)][:COMPARED_HEADS]
    output = _output(mixer, leaves, decay, is_normalized=shape.normalize and mixer is LINEAR)
    if not shape.is_backward or inputs.gradient is None:
        return {"o": output}
    gradient = two_heads(inputs.gradient, layout).double()
    gradients = torch.autograd.grad(output, tuple(leaves.values()), gradient)
    named = {GRADIENT_NAMES[name]: tensor for name, tensor in zip(leaves, gradients, strict=True)}
    return {"o": output.detach(), **named}


def _output(mixer: Mixer, leaves: Mapping[str, Tensor], decay: Tensor | None, *, is_normalized: bool) -> Tensor:
    """Return the output in float64: by the recurrence if the sequence is short enough, else by chunks."""
    import torch

    length = leaves["q"].shape[1]
    if mixer.state_products is None:
        allowed = torch.ones(length, length, dtype=torch.bool, device=leaves["q"].device).tril()
        return by_formula(leaves["q"], leaves["k"], leaves["v"], allowed)
    log_decay = leaves.get("g", None if decay is None else decay[:, None].expand(-1, length))
    tensors = leaves["q"], leaves["k"], leaves["v"], log_decay, leaves.get("beta")
    options = {"is_delta": mixer.is_gated_delta, "is_normalized": is_normalized}
    if length <= RECURRENCE_LENGTH:
        return recurrence(*tensors, **options)
    output = chunked(*tensors, **options)
    with torch.no_grad():
        start: list[Any] = [None if tensor is None else tensor[:, :RECURRENCE_LENGTH] for tensor in tensors]
        distance = relative_error(output[:, :RECURRENCE_LENGTH], recurrence(*start, **options))
    assert distance < REFERENCE_DISTANCE, f"the two references differ by {distance:.1e}"
    return output


def recurrence(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    strength: Tensor | None,
    *,
    is_delta: bool,
    is_normalized: bool = False,
) -> Tensor:
    """Return the output token by token, [heads, length, value_dim]. Arguments as in `chunked`."""
    import torch

    state = value.new_zeros(value.shape[0], key.shape[-1], value.shape[-1])
    key_sum = torch.zeros_like(key[:, 0])
    outputs = []
    for position in range(query.shape[1]):
        q, k, update = query[:, position] / query.shape[-1] ** 0.5, key[:, position], value[:, position]
        if log_decay is not None:
            state = log_decay[:, position, None, None].exp() * state
        if is_delta:
            update = update - (k[:, None] @ state)[:, 0]
        if strength is not None:
            update = strength[:, position, None] * update
        state = state + k[:, :, None] * update[:, None, :]
        output = (q[:, None] @ state)[:, 0]
        if is_normalized:
            key_sum = key_sum + k
            output = output / ((q * key_sum).sum(-1, keepdim=True) + EPSILON)
        outputs.append(output)
    return torch.stack(outputs, dim=1)
