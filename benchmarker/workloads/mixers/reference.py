"""Is the result right? Output and gradients of the very call that is timed, against the same in float64.

The reference is the recurrence as a mixer's paper writes it, one token after the other, in float64. It runs up to 512
positions. A longer sequence is compared with float64 chunks of our own, whose first 512 positions have to be the
recurrence's. Heads do not see each other, so the first and the last head of the last sequence are compared, at every
position. Softmax is compared as in the workload `attention`.

The error of a tensor is the Frobenius norm of its difference from float64 over that of the float64 result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from benchmarker.core.errors import WrongResultError
from benchmarker.schema.base import DType
from benchmarker.workloads.attention.inputs import Inputs as SoftmaxInputs
from benchmarker.workloads.attention.reference import check as check_softmax
from benchmarker.workloads.attention.reference import relative_error
from benchmarker.workloads.mixers.demand import softmax_shape
from benchmarker.workloads.mixers.inputs import Inputs
from benchmarker.workloads.mixers.record import TensorError, TensorName
from benchmarker.workloads.mixers.spec import Shape
from benchmarker.workloads.mixers.variants.base import LINEAR, Layout, Mixer
from benchmarker.workloads.mixers.variants.chunked import TINY, chunked, head_decay

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCES: dict[DType, float] = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}
GATE_TIMES = 3.0
"""Gradients of decays and strengths are sums in which large numbers cancel: their tolerance is so many times that."""
RECURRENCE_LENGTH = 512
SAME_REFERENCE = 1e-9
"""How far the two references may be apart."""
HEADS = 2

Results = dict[TensorName, "Tensor"]
NAMES: dict[str, TensorName] = {"q": "dq", "k": "dk", "v": "dv", "g": "dg", "beta": "dbeta"}


def tolerance_of(tensor: TensorName, dtype: DType) -> float:
    """The largest error of a tensor that passes."""
    return TOLERANCES[dtype] * (GATE_TIMES if tensor in ("dg", "dbeta") else 1.0)


def errors_of(results: Results, mixer: Mixer, inputs: Inputs, shape: Shape, layout: Layout) -> tuple[TensorError, ...]:
    """The error of each result.

    Args:
        results: `o`, and with a backward pass the gradients; whole tensors in the layout.

    Raises:
        WrongResultError: A result holds a number that is not finite.
    """
    for name, result in results.items():
        if not bool(result.isfinite().all()):
            raise WrongResultError(f"wrong result: {name} holds a number that is not finite")
    if mixer.state_products is None and shape.value_dim == shape.head_dim:
        return _softmax_errors(results, inputs, shape)
    expected = reference(mixer, inputs, shape, layout)
    return tuple(
        TensorError(
            tensor=name,
            error=relative_error(two_heads(results[name], layout), exact),
            tolerance=tolerance_of(name, shape.dtype),
        )
        for name, exact in expected.items()
    )


def _softmax_errors(results: Results, inputs: Inputs, shape: Shape) -> tuple[TensorError, ...]:
    attention = SoftmaxInputs(inputs.named["q"], inputs.named["k"], inputs.named["v"], inputs.gradient)
    plain = {name: tensor for name, tensor in results.items() if name not in ("dg", "dbeta")}
    checked = check_softmax(plain, attention, softmax_shape(shape))  # type: ignore[arg-type]
    return tuple(
        TensorError(tensor=tensor.tensor, error=tensor.error, tolerance=TOLERANCES[shape.dtype])
        for tensor in checked.tensors
    )


def wrong(errors: tuple[TensorError, ...], where: str = "") -> str | None:
    """What is wrong, in one line; None where the results are right."""
    for tensor in errors:
        if tensor.error > tensor.tolerance:
            return (
                f"wrong result{where}: {tensor.tensor} is off by {tensor.error:.2g} of its size from float64; "
                f"{tensor.tolerance:.0e} is allowed"
            )
    return None


def two_heads(tensor: Tensor, layout: Layout) -> Tensor:
    """The first and the last head of the last sequence, [2, length, ..], or the only one."""
    heads_first = tensor if layout == "heads first" else tensor.transpose(1, 2)
    last = heads_first[-1]
    return last[:: max(1, last.shape[0] - 1)][:HEADS]


def reference(mixer: Mixer, inputs: Inputs, shape: Shape, layout: Layout) -> Results:
    """Output and gradients of two heads in float64, [2, length, ..]."""
    import torch

    leaves = {
        name: two_heads(tensor.detach(), layout).double().requires_grad_(shape.is_backward)
        for name, tensor in inputs.named.items()
    }
    decay = head_decay(mixer, shape.heads, inputs.named["q"].device)
    decay = None if decay is None else decay[:: max(1, shape.heads - 1)][:HEADS]
    is_normalized = shape.normalize and mixer is LINEAR
    output = _output(mixer, leaves, decay, is_normalized=is_normalized)
    if not shape.is_backward or inputs.gradient is None:
        return {"o": output}
    gradient = two_heads(inputs.gradient, layout).double()
    gradients = torch.autograd.grad(output, tuple(leaves.values()), gradient)
    return {"o": output.detach(), **{NAMES[name]: part for name, part in zip(leaves, gradients, strict=True)}}


def _output(mixer: Mixer, leaves: Mapping[str, Tensor], decay: Tensor | None, *, is_normalized: bool) -> Tensor:
    """The output in float64, by the recurrence where that is short enough."""
    import torch

    if mixer.state_products is None:
        return _softmax(leaves["q"], leaves["k"], leaves["v"])
    length = leaves["q"].shape[1]
    log_decay = leaves.get("g", None if decay is None else decay[:, None].expand(-1, length))
    rows = [leaves["q"], leaves["k"], leaves["v"], log_decay, leaves.get("beta")]

    def compute(form: Callable[..., Tensor], parts: list[Tensor | None]) -> Tensor:
        return form(*parts, is_delta=mixer.is_delta, is_normalized=is_normalized)

    if length <= RECURRENCE_LENGTH:
        return compute(recurrence, rows)
    output = compute(chunked, rows)
    with torch.no_grad():
        start = compute(recurrence, [None if part is None else part[:, :RECURRENCE_LENGTH] for part in rows])
        distance = relative_error(output[:, :RECURRENCE_LENGTH], start)
    assert distance < SAME_REFERENCE, f"the two references differ by {distance:.1e}"
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
    """Token after token, as the papers write it: [heads, length, value_dim]."""
    import torch

    state = value.new_zeros(value.shape[0], key.shape[-1], value.shape[-1])
    weights = torch.zeros_like(key[:, 0])
    outputs = []
    for place in range(query.shape[1]):
        now, where, write = query[:, place] / query.shape[-1] ** 0.5, key[:, place], value[:, place]
        if log_decay is not None:
            state = log_decay[:, place, None, None].exp() * state
        if is_delta:
            write = write - (where[:, None] @ state)[:, 0]
        if strength is not None:
            write = strength[:, place, None] * write
        state = state + where[:, :, None] * write[:, None, :]
        output = (now[:, None] @ state)[:, 0]
        if is_normalized:
            weights = weights + where
            output = output / ((now * weights).sum(-1, keepdim=True) + TINY)
        outputs.append(output)
    return torch.stack(outputs, dim=1)


def _softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal softmax attention by its formula."""
    import torch

    scores: Tensor = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    hidden: Tensor = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
    output: Tensor = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value
    return output
