"""Inspection of a loaded model: bytes by unique storage, and parameters stored in fewer than 16 bits.

Quantized weights hide their size. torchao's is a subclass that reports 16 bits and holds int8 values and scales;
bitsandbytes keeps scales in an attribute; GPTQ has integer buffers. So every plain tensor underneath is found and each
storage counted once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.model import LoadFacts, TensorTypes

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

Linear = Any  # Module with in_features and out_features, of any library.


def load_facts(
    model: PreTrainedModel,
    *,
    load_s: float,
    peak_bytes: int | None,
    quantize_s: float | None = None,
    notes: tuple[str, ...] = (),
    file_types: TensorTypes | None = None,
) -> LoadFacts:
    linears: list[Linear] = [module for module in model.modules() if is_linear(module)]
    head: Linear | None = model.get_output_embeddings()
    embedding: Any = model.get_input_embeddings()
    weight_bytes = storage_bytes(tensor for module in model.modules() for tensor in module_tensors(module))
    parameters = parameter_count(model)
    return LoadFacts(
        load_s=load_s,
        quantize_s=quantize_s,
        peak_bytes=peak_bytes,
        weight_bytes=weight_bytes,
        parameters=parameters,
        bits_per_weight=8 * weight_bytes / parameters,
        quantized_fraction=sum(map(weights_of, quantized_linears(model))) / parameters,
        linear_classes=_counted(type(linear).__name__ for linear in linears),
        weight_classes=_counted(_weight_class(linear) for linear in linears),
        lm_head_dtype=_stored_dtype(head.weight) if head is not None else "none",
        lm_head_tied=head is not None and shares_storage(head.weight, embedding.weight),
        notes=notes,
        file_types=file_types,
    )


def parameter_count(model: PreTrainedModel) -> int:
    """Return the parameters of the architecture: packed weights count as unpacked, shared ones once."""
    packed_linears: list[Linear] = [module for module in model.modules() if is_linear(module) and _is_packed(module)]
    packed_ids = {id(tensor) for module in packed_linears for tensor in module.parameters(recurse=False)}
    packed_ids |= _own_copy_ids(model)
    plain = sum(tensor.numel() for tensor in model.parameters() if id(tensor) not in packed_ids)
    packed = sum(
        weights_of(module) + (module.out_features if getattr(module, "bias", None) is not None else 0)
        for module in packed_linears
    )
    return int(plain + packed)


def _own_copy_ids(model: PreTrainedModel) -> set[int]:
    """Return the output layer's weight if the architecture ties it and this model does not."""
    head: Linear | None = model.get_output_embeddings()
    embedding: Any = model.get_input_embeddings()
    is_copy = (
        head is not None
        and model.config.get_text_config().tie_word_embeddings
        and not shares_storage(head.weight, embedding.weight)
    )
    return {id(head.weight)} if is_copy and head is not None else set()


def quantized_linears(model: PreTrainedModel) -> list[Linear]:
    """Return the linear layers that store a weight in fewer than 16 bits."""
    return [module for module in model.modules() if is_linear(module) and _is_narrow(module)]


def is_linear(module: nn.Module) -> bool:
    return hasattr(module, "in_features") and hasattr(module, "out_features")


def weights_of(linear: Linear) -> int:
    return int(linear.in_features) * int(linear.out_features)


def _is_packed(linear: Linear) -> bool:
    weight = getattr(linear, "weight", None)
    return hasattr(linear, "qzeros") or weight is None or weight.numel() != weights_of(linear)


def _is_narrow(linear: Linear) -> bool:
    if _is_packed(linear):
        return True
    # torchao's int4 packs eight codes into a 32-bit word, so the element size is no indication.
    return storage_bytes(iter([linear.weight])) < 2 * _own_part(linear.weight).numel()


def _own_part(weight: torch.Tensor) -> torch.Tensor:
    """Return the local shard of a DTensor, or the tensor itself."""
    to_local: Any = getattr(weight, "to_local", None)
    part: torch.Tensor = to_local() if to_local else weight
    return part


def _weight_class(linear: Linear) -> str:
    weight = getattr(linear, "qweight", None) if hasattr(linear, "qzeros") else getattr(linear, "weight", None)
    if weight is None:
        return "none"
    kind = type(weight.data).__name__ if type(weight).__name__ == "Parameter" else type(weight).__name__
    return f"{kind} {_stored_dtype(weight)}"


def module_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yield a module's parameters, buffers and extra tensors of its quantization."""
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)
    for loader in LOADERS.values():
        yield from loader.extra_tensors(module)


def flat(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors that a tensor subclass consists of; of a tensor split over GPUs, only those of this rank."""
    tensor = _own_part(tensor)
    flatten: Any = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
        return
    names, _ = flatten()
    for name in names:
        yield from flat(getattr(tensor, name))


def storage_bytes(tensors: Iterator[torch.Tensor]) -> int:
    sizes: dict[tuple[str, int], int] = {}
    for tensor in tensors:
        for part in flat(tensor):
            storage = part.untyped_storage()
            sizes[str(part.device), storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def shares_storage(first: torch.Tensor, second: torch.Tensor) -> bool:
    def places(tensor: torch.Tensor) -> set[int]:
        return {part.untyped_storage().data_ptr() for part in flat(tensor)}

    return places(first) == places(second)


def _stored_dtype(weight: torch.Tensor) -> str:
    largest = max(flat(weight), key=lambda part: part.numel())
    return str(largest.dtype).removeprefix("torch.")


def _counted(names: Iterator[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))
