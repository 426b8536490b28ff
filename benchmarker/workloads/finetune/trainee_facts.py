"""Facts of a trainable model, read from its tensors: counts, bytes, types, and a hash of its frozen weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import installed_version
from benchmarker.workloads.finetune.record import DTypes, FinetuneFacts
from benchmarker.workloads.finetune.trainee import Trainee

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


def built_facts(trainee: Trainee, *, dtypes: DTypes, trained_bytes: int, frozen: str | None) -> FinetuneFacts:
    """Return the facts of a trainee.

    Args:
        trained_bytes: Bytes of trained weights, gradients and optimizer state.
        frozen: Hash of the frozen weights before the first step; None if all weights are trained.
    """
    recipe, linears = trainee.recipe, trainee.linears
    trained = trainee.trained
    is_lora, is_checkpointed = recipe.train == "lora", recipe.checkpointing == "all"
    matrices = sum(parameter.numel() for parameter in trained if parameter.ndim == 2) if is_lora else linears.total
    checkpointed = linears.in_layers + (matrices if is_lora else 0) if is_checkpointed else 0
    return FinetuneFacts(
        trained_parameters=sum(parameter.numel() for parameter in trained),
        trained_linear_weights=matrices,
        frozen_linear_weights=linears.total if is_lora else 0,
        checkpointed_linear_weights=checkpointed,
        weight_bytes=trainee.weight_bytes,
        trained_bytes=trained_bytes,
        adapted_layers=sum(hasattr(module, "lora_A") for module in trainee.model.modules()),
        dequantize_calls=(3 if is_checkpointed else 2) * linears.packed if linears.packed else None,
        dtypes=dtypes,
        frozen_sha256=frozen,
        peft=installed_version("peft") if is_lora else None,
    )


def state_bytes(parameters: Iterable[nn.Parameter], optimizer: Optimizer) -> int:
    """Return the bytes of trained weights, of gradients of equal size, and of the optimizer's tensors."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    return 2 * weights + sum(tensor.numel() * tensor.element_size() for tensor in _state_tensors(optimizer))


def _state_tensors(optimizer: Optimizer) -> Iterator[Tensor]:
    import torch

    for values in optimizer.state.values():
        yield from (value for value in values.values() if isinstance(value, torch.Tensor))


def seen_dtypes(trainee: Trainee, optimizer: Optimizer, ids: Tensor) -> DTypes:
    """Run one forward pass and return the types in it, and those of weights and optimizer state.

    Args:
        ids: A batch, [batch, length].
    """
    import torch

    head = trainee.base.get_output_embeddings()
    inputs: list[str] = []
    handle = head.register_forward_pre_hook(lambda module, arguments: inputs.append(_dtype_name(arguments[0])))
    try:
        with torch.no_grad(), _query_dtypes() as queries:
            trainee.loss(ids)
    finally:
        handle.remove()
    norm = next((module for module in trainee.base.modules() if "Norm" in type(module).__name__), None)
    # Tensors of one number are step counts.
    moments = [tensor for tensor in _state_tensors(optimizer) if tensor.numel() > 1]
    return DTypes(
        head_input=inputs[0] if inputs else None,
        head_weight=_dtype_name(head.weight),
        attention_query=queries[-1] if queries else None,
        norm_weight=_dtype_name(norm.weight) if norm is not None else None,
        trained=_dtype_name(trainee.trained[0]),
        optimizer_state=_dtype_name(moments[0]) if moments else None,
    )


@contextmanager
def _query_dtypes() -> Iterator[list[str]]:
    """Collect the types of the queries of scaled_dot_product_attention while the context is open."""
    from torch.nn.functional import scaled_dot_product_attention
    from torch.overrides import TorchFunctionMode

    dtypes: list[str] = []

    class Watching(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is scaled_dot_product_attention:
                dtypes.append(_dtype_name(args[0]))
            return function(*args, **(kwargs or {}))

    with Watching():
        yield dtypes


def frozen_sha256(trainee: Trainee) -> str | None:
    """Return the SHA-256 of sums over each frozen tensor's bytes, which any single change alters; None if all weights
    are trained."""
    import torch

    if trainee.recipe.train == "full":
        return None
    digest = hashlib.sha256()
    with torch.no_grad():
        for tensor in trainee.frozen_tensors():
            flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
            words = flat.view(torch.int32) if flat.numel() % 4 == 0 and flat.data_ptr() % 4 == 0 else flat
            # One sum does not detect a swap of two words; the second sum skips every other word.
            digest.update(f"{words.sum(dtype=torch.int64).item()},{words[::2].sum(dtype=torch.int64).item()};".encode())
    return digest.hexdigest()


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
