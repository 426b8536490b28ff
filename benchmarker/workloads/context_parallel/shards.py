"""A rank's part of the inputs, and the whole result of all parts."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarker.workloads.attention.inputs import Inputs
from benchmarker.workloads.attention.reference import Results
from benchmarker.workloads.context_parallel.split import Order, spans_of
from benchmarker.workloads.context_parallel.variants.base import Plan


def shard_of(tensor: Tensor, order: Order, rank: int, ranks: int) -> Tensor:
    """The rows of a rank, contiguous. Positions are the third dimension."""
    spans = spans_of(order, rank, ranks, tensor.shape[2])
    return torch.cat([tensor[:, :, first:end] for first, end in spans], dim=2)


def shard(inputs: Inputs, plan: Plan) -> Inputs:
    """A rank's part of all inputs; leaves that ask for a gradient where the whole ones do."""
    parts = [
        shard_of(part.detach(), plan.order, plan.place.rank, plan.place.ranks).requires_grad_(part.requires_grad)
        for part in inputs.tensors
    ]
    gradient = inputs.gradient
    if gradient is not None:
        gradient = shard_of(gradient, plan.order, plan.place.rank, plan.place.ranks)
    return Inputs(parts[0], parts[1], parts[2], gradient)


def put_together(results: Results, plan: Plan) -> Results | None:
    """The whole tensors on rank 0; None on the others. All ranks call it at the same time."""
    whole: Results = {}
    for name, part in results.items():
        tensor = gathered(part, plan)
        if tensor is not None:
            whole[name] = tensor
    return whole or None


def gathered(part: Tensor, plan: Plan) -> Tensor | None:
    """All ranks' rows of one tensor, each where it belongs, on rank 0; None on the others."""
    place = plan.place
    own = part.detach().contiguous()
    if place.ranks == 1:
        return own
    parts = [torch.empty_like(own) for _ in range(place.ranks)] if place.rank == 0 else None
    dist.gather(own, parts, dst=0)
    if parts is None:
        return None
    length = own.shape[2] * place.ranks
    whole = own.new_empty(*own.shape[:2], length, own.shape[3])
    for rank, rows in enumerate(parts):
        spans = spans_of(plan.order, rank, place.ranks, length)
        sizes = [end - first for first, end in spans]
        for (first, end), chunk in zip(spans, rows.split(sizes, dim=2), strict=True):
            whole[:, :, first:end] = chunk
    return whole


def position_coded(like: Inputs, plan: Plan) -> Inputs:
    """A rank's inputs whose result says which positions each row saw.

    Queries and keys are 0, so that all that a row sees count the same; the values at position j are (j + 1) / length.
    Row i of causal attention is then the mean of the first i + 1 values, (i + 2) / (2 length).

    Args:
        like: A rank's inputs, for their shapes.
    """
    length = plan.shape.seq_len
    codes = torch.arange(1, length + 1, dtype=torch.float64, device=like.value.device) / length
    own = shard_of(codes.reshape(1, 1, length, 1), plan.order, plan.place.rank, plan.place.ranks)
    value = own.to(like.value.dtype).expand(like.value.shape).contiguous()
    return Inputs(torch.zeros_like(like.query), torch.zeros_like(like.key), value, None)


def order_error(output: Tensor) -> float:
    """Largest relative distance of the whole output of `position_coded` from the means that it must have."""
    length = output.shape[2]
    means = torch.arange(2, length + 2, dtype=torch.float64, device=output.device) / (2 * length)
    difference = (output.double() - means.reshape(1, 1, length, 1)).abs() / means.reshape(1, 1, length, 1)
    return float(difference.max())
