"""Count of the experts that decode steps read, by an untimed forward pass over prompts and generated tokens with a hook
on the experts of each layer.

An expert that several sequences of a batch use in a step is read once. A step therefore reads at least the experts of
one sequence, and at most the sum over all sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import UnsupportedError
from benchmarker.workloads.generation.read_architecture import expert_containers

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

PASS_TOKENS = 4096  # Maximum number of tokens in a forward pass; a longer sequence is a pass of its own.


def experts_per_step(model: PreTrainedModel, sequences: Sequence[Sequence[int]], *, steps: int) -> float:
    """Return the number of experts that a decode step reads in an MoE layer, mean over layers and steps.

    Args:
        sequences: [batch][tokens], equally long: context, prompt and all generated tokens except the last.
        steps: Number of decode steps. Their inputs are the last `steps` tokens of each sequence.

    Raises:
        UnsupportedError: The experts are separate modules, as in some quantizations.
    """
    import torch

    distinct = sorted({tuple(sequence) for sequence in sequences})
    rows = max(1, PASS_TOKENS // len(distinct[0]))
    chosen: dict[int, list[Tensor]] = {}
    record: list[Tensor] = []  # Chosen experts of each MoE layer in one forward pass, [tokens, experts per token].

    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
        record.append(kwargs["top_k_index"] if "top_k_index" in kwargs else args[1])

    with ExitStack() as hooks, torch.no_grad(), torch.compiler.set_stance("force_eager"):
        for container in expert_containers(model):
            if hasattr(container, "num_experts"):
                hooks.enter_context(container.register_forward_pre_hook(hook, with_kwargs=True))
        for start in range(0, len(distinct), rows):
            record.clear()
            ids = torch.tensor(distinct[start : start + rows], device=model.device)
            model.base_model(input_ids=ids, use_cache=False)
            for layer, indices in enumerate(record):
                chosen.setdefault(layer, []).append(indices.view(*ids.shape, -1)[:, -steps:])
    if not chosen:
        raise UnsupportedError("the experts are separate modules, and those that a step reads are not counted")
    by_layer = [torch.cat(parts).transpose(0, 1).flatten(1) for parts in chosen.values()]
    counts = [len(step.unique()) for layer in by_layer for step in layer]
    return sum(counts) / len(counts)
