"""Bytes that one decode step reads, counted operator by operator, for comparison with an architecture's description."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

WRITE_ONLY = {"aten::copy_", "aten::fill_", "aten::zero_", "aten::index_copy_"}
"""Operators whose first argument is only written."""


class Counted(NamedTuple):
    weight_bytes: int
    kv_bytes: int
    state_bytes: int
    flops: int


class ReadBytes(TorchDispatchMode):
    """Mode that marks the elements of each storage that operators read. Gathers mark the rows that they look up."""

    def __init__(self, named: Sequence[tuple[str, Tensor]]) -> None:
        super().__init__()
        self._named = named  # Keeps the tensors alive: another tensor could reuse the address of a freed storage.
        self.marks: dict[int, tuple[str, int, Tensor]] = {}
        for name, tensor in named:
            storage = tensor.untyped_storage()
            elements = storage.nbytes() // tensor.element_size()
            mark = (name, tensor.element_size(), torch.zeros(elements, dtype=torch.bool))
            self.marks.setdefault(storage.data_ptr(), mark)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name, returns = func._schema.name, func._schema.returns
        is_view = any(returned.alias_info and not returned.alias_info.is_write for returned in returns)
        if is_view or name.endswith("_like") or name.startswith("aten::new_"):
            return result
        with _disable_current_modes():
            if name == "aten::embedding":
                self._mark(args[0], args[1].flatten())
            elif name == "aten::index":
                self._mark(args[0], tuple(slice(None) if index is None else index for index in args[1]))
            else:
                for tensor in tree_leaves((args[name in WRITE_ONLY :], kwargs or {})):
                    self._mark(tensor) if isinstance(tensor, Tensor) else None
        return result

    def _mark(self, tensor: Tensor, rows: Any = ...) -> None:
        if marked := self.marks.get(tensor.untyped_storage().data_ptr()):
            mark = marked[2].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
            # An expanded view supports fill_, but no assignment.
            mark.fill_(True) if rows is ... else mark.__setitem__(rows, True)

    def bytes(self, kind: str) -> int:
        """Return the bytes read of the tensors whose name begins with `kind`."""
        return sum(int(mark.sum()) * size for name, size, mark in self.marks.values() if name.startswith(kind))


def counted_step(model: nn.Module, ids: Tensor) -> Counted:
    """Count one decode step of the sequences `ids`. All tokens but the last are in the cache."""
    with torch.no_grad():
        cache = model(ids[:, :-1], use_cache=True).past_key_values
        named = [*model.named_parameters(), *model.named_buffers()]
        weights = [(f"weight {name}", tensor) for name, tensor in named]
        with ReadBytes([*weights, *cache_tensors(cache)]) as read, FlopCounterMode(display=False) as flops:
            model(ids[:, -1:], past_key_values=cache, use_cache=True)
    return Counted(read.bytes("weight"), read.bytes("kv"), read.bytes("state"), flops.get_total_flops())


def cache_tensors(cache: Any) -> Iterator[tuple[str, Tensor]]:
    for layer in cache.layers:
        for name in ("keys", "values"):
            if isinstance(tensor := getattr(layer, name, None), Tensor):
                yield f"kv {name}", tensor
        for name in ("conv_states", "recurrent_states"):
            states = (getattr(layer, name, None) or {}).values()
            yield from (("state", state) for state in states if state is not None)
