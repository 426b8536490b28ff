"""torch's own context_parallel, a prototype in 2.11 and 2.13: it replaces scaled_dot_product_attention while it lasts.

Keys and values come by one all-gather (its default, which is no ring) or by an all-to-all a step; their gradients by an
all-to-all in both. Its order is the zigzag of `split`, which is proven by a tensor of positions that it splits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarker.core.errors import UnsupportedError, WrongResultError
from benchmarker.workloads.attention.variants.base import Attention
from benchmarker.workloads.context_parallel.split import spans_of
from benchmarker.workloads.context_parallel.variants.base import Plan
from benchmarker.workloads.context_parallel.variants.single import BACKENDS


def open_allgather(plan: Plan) -> Attention:
    """With its default, which gathers all keys and values at once."""
    return _open(plan, "allgather")


def open_alltoall(plan: Plan) -> Attention:
    """With keys and values passed on by all-to-all."""
    return _open(plan, "alltoall")


def _open(plan: Plan, rotation: Literal["allgather", "alltoall"]) -> Attention:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(plan.place.device.split(":")[0], (plan.place.ranks,))
    is_grouped = plan.shape.heads != plan.shape.kv_heads

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # Looked up at every call: it is another function inside the context.
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=is_grouped
        )

    return Attention(attend, _around(plan, mesh, rotation))


def _around(plan: Plan, mesh: Any, rotation: str) -> Callable[[], AbstractContextManager[object]]:
    @contextmanager
    def around() -> Iterator[None]:
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import set_rotate_method
        from torch.nn.attention import SDPBackend, sdpa_kernel

        set_rotate_method(rotation)
        positions = torch.arange(plan.shape.seq_len, device=plan.place.device)
        functional, original = torch.nn.functional, torch.nn.functional.scaled_dot_product_attention
        try:
            with (
                sdpa_kernel(getattr(SDPBackend, BACKENDS[plan.kernel])),
                context_parallel(mesh, buffers=[positions], buffer_seq_dims=[0]),
                _rotation(plan),
            ):
                refuse_other_order(positions, plan)
                yield
        finally:
            # In 2.11 an exception inside leaves it replaced.
            functional.scaled_dot_product_attention = original

    return around


def refuse_other_order(positions: Tensor, plan: Plan) -> None:
    """Refuse a result that would be put together in another order than it was split in.

    Args:
        positions: Those that torch gave to this rank.

    Raises:
        WrongResultError: They are not those of `split`.
    """
    spans = spans_of(plan.order, plan.place.rank, plan.place.ranks, plan.shape.seq_len)
    expected = torch.cat([torch.arange(first, end) for first, end in spans])
    if positions.shape != expected.shape or not torch.equal(positions.cpu(), expected):
        raise WrongResultError("wrong result: torch's context_parallel gives the ranks other positions than zigzag's")


@contextmanager
def _rotation(plan: Plan) -> Iterator[None]:
    """For the same work without exchange, put something in the place of torch's rotation that keeps what it is given.

    Raises:
        UnsupportedError: This torch has no such place.
    """
    if plan.is_exchanging:
        yield
        return
    from torch.distributed.tensor.experimental import _attention as outer

    module = _module_of_rotation(outer)
    original = getattr(module, "_create_rotater", None)
    if original is None:
        raise UnsupportedError("this torch names its rotation otherwise: the same work without exchange is not known")
    setattr(module, "_create_rotater", lambda *_, **__: Kept())  # noqa: B010
    try:
        yield
    finally:
        setattr(module, "_create_rotater", original)  # noqa: B010


def _module_of_rotation(outer: Any) -> Any:
    """The module in which torch's ring looks its rotation up: a package of its own since 2.10."""
    try:
        from torch.distributed.tensor.experimental._context_parallel import _attention as inner
    except ImportError:
        return outer
    return inner


class Kept:
    """A rotation that gives back what it was given."""

    def exchange_buffers(self, buffer: Tensor) -> None:
        self._buffer = buffer.contiguous()

    def next_buffer(self) -> Tensor:
        return self._buffer
