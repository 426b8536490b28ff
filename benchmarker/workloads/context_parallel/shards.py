"""Shards of the inputs, the gathered result, and its checks.

The gathered result is compared with float64 as in the workload attention; with the result of one GPU that computed the
full sequence with the same kernel, over all rows of all tensors, which detects gradients of keys and values that were
returned to a wrong rank; and, for the order of rows, with the exact result of inputs whose values are their positions.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarker.core.errors import WrongResultError
from benchmarker.workloads.attention.attention_reference import check, wrong
from benchmarker.workloads.attention.spec import AttentionShape
from benchmarker.workloads.context_parallel.exchange import Plan
from benchmarker.workloads.context_parallel.record import ContextParallelChecked, TensorDistance
from benchmarker.workloads.context_parallel.splittings import spans_of
from benchmarker.workloads.operation.operation_call import CallInputs, Operation, Results, relative_error, results_of

ORDER_TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}
"""Largest relative error of a mean of positions."""


def _shard_of(tensor: Tensor, plan: Plan) -> Tensor:
    spans = spans_of(plan.order, plan.rank, plan.ranks, tensor.shape[2])
    return torch.cat([tensor[:, :, first:end] for first, end in spans], dim=2)


def shard(inputs: CallInputs, plan: Plan) -> CallInputs:
    """Return a rank's shard of all inputs, as leaves that require a gradient if the full ones do."""
    named = {
        name: _shard_of(tensor.detach(), plan).requires_grad_(tensor.requires_grad)
        for name, tensor in inputs.named.items()
    }
    return CallInputs(named, None if inputs.gradient is None else _shard_of(inputs.gradient, plan))


def gather_results(results: Results, plan: Plan) -> Results | None:
    """Return the full tensors on rank 0 and None on the others. All ranks must call it at the same time."""
    full = {name: gather(result, plan) for name, result in results.items()}
    return {name: tensor for name, tensor in full.items() if tensor is not None} or None


def gather(shard: Tensor, plan: Plan) -> Tensor | None:
    """Return one tensor with the rows of all ranks in their order on rank 0; None on the others."""
    own = shard.detach().contiguous()
    if plan.ranks == 1:
        return own
    shards = [torch.empty_like(own) for _ in range(plan.ranks)] if plan.rank == 0 else None
    dist.gather(own, shards, dst=0)
    if shards is None:
        return None
    length = own.shape[2] * plan.ranks
    full = own.new_empty(*own.shape[:2], length, own.shape[3])
    for rank, rows in enumerate(shards):
        spans = spans_of(plan.order, rank, plan.ranks, length)
        sizes = [end - first for first, end in spans]
        for (first, end), chunk in zip(spans, rows.split(sizes, dim=2), strict=True):
            full[:, :, first:end] = chunk
    return full


def position_coded(like: CallInputs, plan: Plan) -> CallInputs:
    """Return inputs of a rank whose result shows which positions each row attended to.

    Queries and keys are 0, so that all visible positions have equal weight; the value at position j is
    (j + 1) / length. Row i of causal attention is then the mean of the first i + 1 values, (i + 2) / (2 length).

    Args:
        like: Inputs of the rank, for their shapes.
    """
    length, value = plan.shape.seq_len, like.named["v"]
    codes = torch.arange(1, length + 1, dtype=torch.float64, device=value.device) / length
    own = _shard_of(codes.reshape(1, 1, length, 1), plan)
    zeros = {name: torch.zeros_like(like.named[name]) for name in ("q", "k")}
    return CallInputs({**zeros, "v": own.to(value.dtype).expand(value.shape).contiguous()}, None)


def _order_error(output: Tensor) -> float:
    """Return the largest relative distance of the gathered output of `position_coded` from the exact means."""
    length = output.shape[2]
    means = torch.arange(2, length + 2, dtype=torch.float64, device=output.device) / (2 * length)
    means = means.reshape(1, 1, length, 1)
    return float(((output.double() - means).abs() / means).max())


def compare_with_references(
    results: Results, coded: Tensor, inputs: CallInputs, shape: AttentionShape, single: Operation | None
) -> ContextParallelChecked:
    """Compare the gathered results with their references.

    Args:
        coded: Gathered output of `position_coded`.
        single: One GPU's attention over the full sequence; None if the results are its own.

    Raises:
        WrongResultError: A result holds a number that is not finite.
    """
    checked = check(results, inputs, shape)
    distances: list[TensorDistance] = []
    if single is not None:
        expected = results_of(single, inputs)
        errors = {tensor.tensor: tensor.error for tensor in check(expected, inputs, shape).tensors}
        distances = [
            TensorDistance(tensor=name, distance=relative_error(result, expected[name]), single_error=errors.get(name))
            for name, result in results.items()
        ]
    return ContextParallelChecked(**dict(checked), distances=tuple(distances), order_error=_order_error(coded))


def refuse_wrong(checked: ContextParallelChecked, dtype: str) -> None:
    """Raise WrongResultError if the gathered result is not that of attention."""
    if problem := wrong(checked):
        raise WrongResultError(problem)
    for tensor in checked.distances:
        if tensor.distance > checked.tolerance:
            raise WrongResultError(
                f"wrong result: {tensor.tensor} is off by {tensor.distance:.2g} of its size from one GPU's with the "
                f"same kernel; {checked.tolerance:.0e} is allowed"
            )
    if checked.order_error is not None and checked.order_error > ORDER_TOLERANCE[dtype]:
        raise WrongResultError(
            f"wrong result: rows attend to wrong positions: a mean is off by {checked.order_error:.2g}"
        )
