"""What was built, read from its tensors: counts, bytes, types, and whether frozen weights stay what they were."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from benchmarker.core.packages import installed_version
from benchmarker.workloads.finetune.record import DTypes, FinetuneFacts
from benchmarker.workloads.finetune.trainee import Trainee

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


def built_facts(trainee: Trainee, *, dtypes: DTypes, trained_bytes: int, frozen: str | None) -> FinetuneFacts:
    """Counts and bytes of a trainee.

    Args:
        trained_bytes: With gradients and the optimizer's state.
        frozen: Hash of the frozen weights before the first step; None where nothing is frozen.
    """
    recipe, linears = trainee.recipe, trainee.linears
    trained = trainee.trained
    is_lora = recipe.train == "lora"
    matrices = sum(parameter.numel() for parameter in trained if parameter.ndim == 2) if is_lora else linears.total
    again = linears.in_layers + (matrices if is_lora else 0) if recipe.checkpointing == "all" else 0
    passes = 3 if recipe.checkpointing == "all" else 2
    return FinetuneFacts(
        trained_parameters=sum(parameter.numel() for parameter in trained),
        trained_linear_weights=matrices,
        frozen_linear_weights=linears.total if is_lora else 0,
        checkpointed_linear_weights=again,
        weight_bytes=trainee.weight_bytes,
        trained_bytes=trained_bytes,
        adapted_layers=sum(hasattr(module, "lora_A") for module in trainee.model.modules()),
        dequantize_calls=passes * linears.packed if linears.packed else None,
        dtypes=dtypes,
        frozen_sha256=frozen,
        peft=installed_version("peft") if is_lora else None,
    )


def state_bytes(parameters: Iterable[nn.Parameter], optimizer: Optimizer) -> int:
    """Trained weights, gradients of the same size and type, and the optimizer's tensors."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    state = sum(
        tensor.numel() * tensor.element_size() for values in optimizer.state.values() for tensor in _tensors(values)
    )
    return 2 * weights + state


def _tensors(values: dict[str, Any]) -> Iterable[Tensor]:
    import torch

    return (value for value in values.values() if isinstance(value, torch.Tensor))


def seen_dtypes(trainee: Trainee, optimizer: Optimizer, ids: Tensor) -> DTypes:
    """Types in one forward pass, and those of the weights and of the optimizer's state.

    Args:
        ids: A batch, [batch, length].
    """
    import torch

    watch = _QueryType()
    head = trainee.base.get_output_embeddings()
    inputs: list[str] = []
    handle = head.register_forward_pre_hook(lambda module, arguments: inputs.append(_name(arguments[0])))
    try:
        with torch.no_grad(), watch.mode():
            trainee.loss(ids)
    finally:
        handle.remove()
    norm = next((module for module in trainee.base.modules() if "Norm" in type(module).__name__), None)
    moments = [
        value for values in optimizer.state.values() for value in _tensors(values) if value.numel() > 1
    ]  # a step count is a tensor, too
    return DTypes(
        head_input=inputs[0] if inputs else None,
        head_weight=_name(head.weight),
        attention_query=watch.dtype,
        norm_weight=_name(norm.weight) if norm is not None else None,
        trained=_name(trainee.trained[0]),
        optimizer_state=_name(moments[0]) if moments else None,
    )


class _QueryType:
    """The type of the queries that scaled_dot_product_attention is given."""

    def __init__(self) -> None:
        self.dtype: str | None = None

    def mode(self) -> Any:
        """While open, torch's functions are looked at."""
        from torch.nn.functional import scaled_dot_product_attention
        from torch.overrides import TorchFunctionMode

        outer = self

        class Watching(TorchFunctionMode):
            def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if function is scaled_dot_product_attention:
                    outer.dtype = _name(args[0])
                return function(*args, **(kwargs or {}))

        return Watching()


def frozen_sha256(trainee: Trainee) -> str | None:
    """Of the sums of each frozen tensor's bytes, as words of four where they divide: any single change shows. None
    where nothing is frozen."""
    import torch

    if trainee.recipe.train == "full":
        return None
    digest = hashlib.sha256()
    with torch.no_grad():
        for tensor in trainee.frozen_tensors():
            flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
            words = flat.view(torch.int32) if flat.numel() % 4 == 0 and flat.data_ptr() % 4 == 0 else flat
            # One sum is blind to an exchange of two words: the second leaves every other one out.
            digest.update(f"{words.sum(dtype=torch.int64).item()},{words[::2].sum(dtype=torch.int64).item()};".encode())
    return digest.hexdigest()


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
