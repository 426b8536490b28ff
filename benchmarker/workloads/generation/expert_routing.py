"""Count of the experts that decode steps read: one forward pass over prompts and generated tokens, with a hook on the
experts of each layer. It is never timed.

The tokens that a batch makes at the same step share the experts of that step, so a batch reads fewer than each sequence
alone, and more than one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import UnsupportedError
from benchmarker.workloads.generation.read_architecture import expert_containers

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

PASS_TOKENS = 4096  # Tokens of one forward pass, unless one sequence has more.


def experts_per_step(model: PreTrainedModel, sequences: Sequence[Sequence[int]], *, steps: int) -> float:
    """Return the experts that a decode step reads in an MoE layer, mean over layers and steps.

    Args:
        sequences: [batch][tokens], equally long: context, prompt and generated tokens but the last.
        steps: Number of decode steps. Their inputs are the last tokens of each sequence.

    Raises:
        UnsupportedError: The experts are separate modules, as some quantizations leave them.
    """
    import torch

    distinct = sorted({tuple(sequence) for sequence in sequences})
    rows = max(1, PASS_TOKENS // len(distinct[0]))
    chosen: dict[int, list[Tensor]] = {}
    with _recorded(model) as record, torch.no_grad(), torch.compiler.set_stance("force_eager"):
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


@contextmanager
def _recorded(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """Record the experts of each token, [tokens, experts per token], one tensor per MoE layer and forward pass."""
    record: list[Tensor] = []

    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
        record.append(kwargs["top_k_index"] if "top_k_index" in kwargs else args[1])

    handles = [
        container.register_forward_pre_hook(hook, with_kwargs=True)
        for container in expert_containers(model)
        if hasattr(container, "num_experts")
    ]
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()
