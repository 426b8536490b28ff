"""Facts of a trainable model, read from its tensors, and the FLOPs of a training step.

    linear    = tokens * (4 * frozen + 6 * trained)
    attention = 3.5 * 4 * batch * heads * head_dim * layers * S (S + 1) / 2
    recompute = tokens * 2 * checkpointed + attention / 3.5             with gradient checkpointing

A frozen weight costs 2 FLOPs per token forward and 2 for the gradient of its input; a trained weight 2 more for its own
gradient. The common "6 N per token" counts gradients that LoRA does not compute, and is 1.5 times too much. Backward
through attention is 2.5 times forward (Dao, arXiv 2307.08691, section 4). linear + attention are model FLOPs, those of
MFU; with recompute they are hardware FLOPs, those of HFU (Chowdhery et al., "PaLM", arXiv 2204.02311, appendix B). The
embedding is a look-up; norms and elementwise work do not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarker.core.errors import installed_version
from benchmarker.quantization.load import storage_bytes
from benchmarker.workloads.finetune.record import DTypes, FinetuneDemand, FinetuneFacts
from benchmarker.workloads.finetune.spec import FinetunePoint
from benchmarker.workloads.finetune.trainee import Trainee

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


def built_facts(
    trainee: Trainee, optimizer: Optimizer | None = None, ids: Tensor | None = None, *, frozen: str | None = None
) -> FinetuneFacts:
    """Return the facts of a trainee; without a step, types and optimizer state are unknown.

    Args:
        optimizer: After its first step.
        ids: A batch, [batch, length], for a forward pass that shows the types.
        frozen: Hash of the frozen weights before the first step; None if all weights are trained.
    """
    recipe, linears, trained = trainee.recipe, trainee.linears, trainee.trained
    is_lora, is_checkpointed = recipe.train == "lora", recipe.checkpointing == "all"
    matrices = sum(parameter.numel() for parameter in trained if parameter.ndim == 2) if is_lora else linears.total
    checkpointed = linears.in_layers + (matrices if is_lora else 0) if is_checkpointed else 0
    state = _state_tensors(optimizer) if optimizer else []
    return FinetuneFacts(
        trained_parameters=sum(parameter.numel() for parameter in trained),
        trained_linear_weights=matrices,
        frozen_linear_weights=linears.total if is_lora else 0,
        checkpointed_linear_weights=checkpointed,
        weight_bytes=storage_bytes(trainee.frozen_tensors()),
        trained_bytes=2 * sum(map(_bytes, trained)) + sum(map(_bytes, state)),
        adapted_layers=sum(hasattr(module, "lora_A") for module in trainee.model.modules()),
        dequantize_calls=(3 if is_checkpointed else 2) * linears.packed if linears.packed else None,
        dtypes=DTypes() if ids is None else _seen_dtypes(trainee, state, ids),
        frozen_sha256=frozen,
        peft=installed_version("peft") if is_lora else None,
    )


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _state_tensors(optimizer: Optimizer) -> list[Tensor]:
    import torch

    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]


def _seen_dtypes(trainee: Trainee, state: list[Tensor], ids: Tensor) -> DTypes:
    """Run one forward pass and return the types in it, and those of weights and optimizer state."""
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
    moment = next((tensor for tensor in state if tensor.numel() > 1), None)
    return DTypes(
        head_input=inputs[0] if inputs else None,
        head_weight=_dtype_name(head.weight),
        attention_query=queries[-1] if queries else None,
        norm_weight=None if norm is None else _dtype_name(norm.weight),
        trained=_dtype_name(trainee.trained[0]),
        optimizer_state=None if moment is None else _dtype_name(moment),
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
    """Return a hash of the frozen weights, which any single change alters; None if all weights are trained."""
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


class ModelAttention(NamedTuple):
    layers: int
    heads: int
    head_dim: int


def attention_of(model: Any) -> ModelAttention:
    config = model.config.get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return ModelAttention(config.num_hidden_layers, config.num_attention_heads, head_dim)


def demand_of(facts: FinetuneFacts, attention: ModelAttention, point: FinetunePoint) -> FinetuneDemand:
    sequences = point.batch_size * point.accumulate
    tokens = sequences * point.seq_len
    linear = tokens * (4 * facts.frozen_linear_weights + 6 * facts.trained_linear_weights)
    pairs = point.seq_len * (point.seq_len + 1) // 2
    forward = 4 * sequences * attention.heads * attention.head_dim * attention.layers * pairs
    checkpointed = facts.checkpointed_linear_weights
    return FinetuneDemand(
        flops=linear + round(3.5 * forward),
        linear_flops=linear,
        recompute_flops=tokens * 2 * checkpointed + forward if checkpointed else 0,
        tokens=tokens,
    )
