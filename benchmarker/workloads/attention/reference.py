"""Is the result right? One call's output and gradients against the same in float64.

The error of a tensor is the Frobenius norm of its difference from float64 over that of the float64 result. Rounding
alone makes some; how much is right for a type, torch's `math` backend shows, which computes the same rows in the same
type. An implementation is wrong where an error is above the type's tolerance *and* above twice math's.

Up to 2,048 positions all rows are compared, above that 64 of them, one from each of 64 equal parts of the sequence;
then the output and the queries' gradient, whose rows depend on no other row. The gradients of keys and values do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from benchmarker.core.errors import WrongResultError
from benchmarker.workloads.attention.record import AttentionChecked, TensorError, TensorName
from benchmarker.workloads.attention.spec import DType, Shape

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from benchmarker.workloads.attention.inputs import Inputs

TOLERANCES: dict[DType, float] = {"float32": 1e-5, "tf32": 2e-3, "bfloat16": 1e-2, "float16": 2e-3}
"""Of TF32 that of float16, which has as many bits of fraction."""
MATH_RATIO = 2.0
ALL_ROWS = 2048
SAMPLED_ROWS = 64
CHUNK_BYTES = 2**28
"""Scores of so many bytes at once."""

Results = dict[TensorName, "Tensor"]


class Precision(NamedTuple):
    """How the reference rows are computed."""

    dtype: torch.dtype
    is_math: bool
    """Through torch's math backend, not through the formula."""


def rows_of(seq_len: int) -> list[int]:
    """Query positions that are compared: all, or one from the middle of each part and the last."""
    if seq_len <= ALL_ROWS:
        return list(range(seq_len))
    middles = [(2 * part + 1) * seq_len // (2 * SAMPLED_ROWS) for part in range(SAMPLED_ROWS - 1)]
    return [*middles, seq_len - 1]


def check(results: Results, inputs: Inputs, shape: Shape) -> AttentionChecked:
    """Compare one call's results with float64.

    Args:
        results: `o`, and with a backward pass `dq`, `dk`, `dv`; whole tensors.

    Raises:
        WrongResultError: A result holds a number that is not finite.
    """
    import torch

    for name, result in results.items():
        if not bool(result.isfinite().all()):
            raise WrongResultError(f"wrong result: {name} holds a number that is not finite")

    rows = rows_of(shape.seq_len)
    exact = reference(inputs, shape, rows, Precision(torch.float64, is_math=False))
    by_math = reference(inputs, shape, rows, Precision(inputs.query.dtype, is_math=True))
    tensors = []
    for name, expected in exact.items():
        result = results[name] if name in ("dk", "dv") else results[name][:, :, rows]
        tensors.append(
            TensorError(
                tensor=name,
                error=relative_error(result, expected),
                math_error=relative_error(by_math[name], expected),
            )
        )
    return AttentionChecked(
        against="float64",
        error=max(tensor.error for tensor in tensors),
        tolerance=TOLERANCES[shape.dtype],
        tensors=tuple(tensors),
        rows=len(rows),
    )


def wrong(checked: AttentionChecked) -> str | None:
    """What is wrong, in one line; None where the results are right."""
    for tensor in checked.tensors:
        if tensor.error > checked.tolerance and tensor.error > MATH_RATIO * tensor.math_error:
            return (
                f"wrong result: {tensor.tensor} is off by {tensor.error:.2g} of its size from {checked.against}; "
                f"{checked.tolerance:.0e} is allowed, and torch's math backend is off by {tensor.math_error:.2g}"
            )
    return None


def relative_error(result: Tensor, expected: Tensor) -> float:
    """Frobenius norm of the difference over that of what is expected; infinite where a number is not finite."""
    difference = (result.double() - expected.double()).norm().item() / expected.double().norm().item()
    return difference if math.isfinite(difference) else math.inf


def reference(inputs: Inputs, shape: Shape, rows: list[int], precision: Precision) -> Results:
    """The rows of the output, and with a backward pass the rows of dq; dk and dv where the rows are all of them."""
    import torch

    shared = shape.heads // shape.kv_heads
    groups = shape.batch_size * shape.kv_heads
    # [groups, heads that share, rows, head_dim] and [groups, 1, length, head_dim]
    query, key, value = (tensor.detach() for tensor in inputs.tensors)
    query = query[:, :, rows].reshape(groups, shared, len(rows), shape.head_dim)
    key, value = (part.reshape(groups, 1, shape.seq_len, shape.head_dim) for part in (key, value))
    gradient = None if inputs.gradient is None else inputs.gradient[:, :, rows].reshape(query.shape)
    chunk = max(1, CHUNK_BYTES // (shared * len(rows) * shape.seq_len * 8))
    allowed = _allowed(shape, rows, query.device)
    parts = [
        _rows(
            [part[start : start + chunk].to(precision.dtype) for part in (query, key, value)],
            None if gradient is None else gradient[start : start + chunk].to(precision.dtype),
            allowed,
            _by_math if precision.is_math else _by_formula,
        )
        for start in range(0, groups, chunk)
    ]
    together = [torch.cat(tensors) for tensors in zip(*parts, strict=True)]
    names: tuple[TensorName, ...] = ("o", "dq", "dk", "dv") if len(rows) == shape.seq_len else ("o", "dq")
    sizes = {"o": shape.heads, "dq": shape.heads, "dk": shape.kv_heads, "dv": shape.kv_heads}
    return {
        name: tensor.reshape(shape.batch_size, sizes[name], -1, shape.head_dim)
        for name, tensor in zip(names, together, strict=False)
    }


def _allowed(shape: Shape, rows: list[int], where: torch.device) -> Tensor | None:
    """The mask of those rows, [rows, length], True where a key is seen."""
    import torch

    if not shape.causal:
        return None
    back = torch.tensor(rows, device=where)[:, None] - torch.arange(shape.seq_len, device=where)
    return (back >= 0) & (back < (shape.window or shape.seq_len))


def _rows(
    tensors: Sequence[Tensor],
    gradient: Tensor | None,
    allowed: Tensor | None,
    attend: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor],
) -> list[Tensor]:
    """Output, and the gradients of query, key and value where that of the output is given."""
    import torch

    query, key, value = (part.requires_grad_(gradient is not None) for part in tensors)
    output = attend(query, key, value, allowed)
    if gradient is None:
        return [output]
    return [output.detach(), *torch.autograd.grad(output, (query, key, value), gradient)]


def _by_formula(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(dim=-1) @ value


def _by_math(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    key, value = (part.expand(-1, query.shape[1], -1, -1) for part in (key, value))
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(query, key, value, attn_mask=allowed)
