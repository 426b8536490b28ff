"""torch's own context_parallel, a prototype in 2.11 and 2.13: it replaces scaled_dot_product_attention in its context.

Keys and values come by one all-gather (its default, not a ring) or by one all-to-all per step; their gradients by an
all-to-all in both. Its order is the zigzag order of `sequence_split`, which a split tensor of positions verifies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarker.core.errors import UnsupportedError, WrongResultError
from benchmarker.workloads.context_parallel.exchange import SDPA_BACKENDS, Plan
from benchmarker.workloads.context_parallel.splittings import spans_of
from benchmarker.workloads.operation.operation_call import Operation


def open_torch(plan: Plan, rotation: Literal["allgather", "alltoall"]) -> Operation:
    """Prepare torch's context_parallel with one of its rotations of keys and values."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(plan.device.split(":")[0], (plan.ranks,))
    is_grouped = plan.shape.heads != plan.shape.kv_heads

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # Looked up at every call, since the context replaces the function.
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=is_grouped
        )

    @contextmanager
    def around() -> Iterator[None]:
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import set_rotate_method
        from torch.nn.attention import SDPBackend, sdpa_kernel

        set_rotate_method(rotation)
        positions = torch.arange(plan.shape.seq_len, device=plan.device)
        functional, original = torch.nn.functional, torch.nn.functional.scaled_dot_product_attention
        try:
            with (
                sdpa_kernel(getattr(SDPBackend, SDPA_BACKENDS[plan.kernel])),
                context_parallel(mesh, buffers=[positions], buffer_seq_dims=[0]),
                _rotation(plan),
            ):
                refuse_other_order(positions, plan)
                yield
        finally:
            # In 2.11 an exception inside leaves it replaced.
            functional.scaled_dot_product_attention = original

    return Operation(attend, around)


def refuse_other_order(positions: Tensor, plan: Plan) -> None:
    """Raise WrongResultError if torch split the sequence in another order, in which the results would be gathered.

    Args:
        positions: Positions that torch assigned to this rank.
    """
    spans = spans_of(plan.order, plan.rank, plan.ranks, plan.shape.seq_len)
    expected = torch.cat([torch.arange(first, end) for first, end in spans])
    if positions.shape != expected.shape or not torch.equal(positions.cpu(), expected):
        raise WrongResultError("wrong result: torch's context_parallel gives the ranks other positions than zigzag's")


@contextmanager
def _rotation(plan: Plan) -> Iterator[None]:
    """Without exchange, replace torch's rotation by one that returns its input. Raises UnsupportedError if this torch
    has no such function."""
    if plan.is_exchanging:
        yield
        return
    module = _rotation_module()
    original = getattr(module, "_create_rotater", None)
    if original is None:
        raise UnsupportedError("this torch names its rotation differently: the exchange cannot be left out")
    setattr(module, "_create_rotater", lambda *_, **__: NoRotation())  # noqa: B010
    try:
        yield
    finally:
        setattr(module, "_create_rotater", original)  # noqa: B010


def _rotation_module() -> Any:
    from torch.distributed.tensor.experimental import _attention as older

    try:
        from torch.distributed.tensor.experimental._context_parallel import _attention as newer
    except ImportError:
        return older
    return newer


class NoRotation:
    def exchange_buffers(self, buffer: Tensor) -> None:
        self._buffer = buffer.contiguous()

    def next_buffer(self) -> Tensor:
        return self._buffer
