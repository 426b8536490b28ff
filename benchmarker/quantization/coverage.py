"""Share of a model's weights that a quantization covers, by kind of module.

A stored checkpoint is examined after its first forward pass: some libraries unpack its weights to 16 bits in that
pass, and the table would show 16-bit speed under the quantization's name. Shares are of the parameters (not bytes) that
a decode step reads: one row of an embedding, and all experts of a mixture of experts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.read_model import run_token
from benchmarker.quantization.base import Loader, is_fused_expert
from benchmarker.quantization.load import flat, has_low_bits, is_linear, is_narrow, module_tensors, weights_of
from benchmarker.schema.model import ModuleKind, ModuleWeights, WeightCoverage

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

LARGEST_UNQUANTIZED = 0.5
"""Largest share of unquantized weights of a model that still counts as quantized."""
NAMES: dict[ModuleKind, re.Pattern[str]] = {
    "router": re.compile(r"\S*Router|gate|router|\w+_expert_gate"),
    "experts": re.compile(r"\S*Experts|experts"),
    "linear attention": re.compile(
        r"\S*(GatedDelta|DeltaAttention|LinearAttention|LightningAttention|ShortConv)\S*|\S*(Mixer|MambaLayer)|mamba"
    ),
    "attention": re.compile(r"\S*Attention|self_attn|attn"),
    "MLP": re.compile(r"\S*(MLP|FeedForward)|mlp|feed_forward"),
}
"""Class names and attribute names of the modules of each kind, in the libraries' models."""


def coverage_after_forward(model: PreTrainedModel) -> WeightCoverage:
    """Run one forward pass of one token, and return the weights that a decode step reads, by kind of module."""
    run_token(model)
    return weight_coverage(model)


def weight_coverage(model: PreTrainedModel) -> WeightCoverage:
    """Return the weights that a decode step reads, as stored now. A tied embedding counts once, as output layer."""
    modules, head = dict(model.named_modules()), model.get_output_embeddings()
    parameters: Counter[ModuleKind] = Counter()
    quantized: Counter[ModuleKind] = Counter()
    bytes_by_type: dict[ModuleKind, Counter[str]] = defaultdict(Counter)
    seen: set[tuple[str, int]] = set()
    for path in sorted(modules, key=lambda path: modules[path] is not head):
        kind, rows = module_kind(modules, path, head)
        for tensors, count, is_quantized in _weights(modules[path]):
            parts = [part for tensor in tensors for part in flat(tensor)]
            storages = {(str(part.device), part.untyped_storage().data_ptr()) for part in parts}
            if storages <= seen:
                continue
            seen |= storages
            parameters[kind] += count // rows
            quantized[kind] += count // rows if is_quantized else 0
            for part in parts:
                name = str(part.dtype).removeprefix("torch.")
                bytes_by_type[kind][name] += part.numel() * part.element_size() // rows
    return WeightCoverage(
        kinds={
            kind: ModuleWeights(
                parameters=count, quantized_parameters=quantized[kind], bytes_by_type=dict(bytes_by_type[kind])
            )
            for kind, count in parameters.items()
        }
    )


def _weights(module: nn.Module) -> Iterator[tuple[list[torch.Tensor], int, bool]]:
    """Yield the tensors of each weight (codes and scales), its number of parameters, and True if it is quantized."""
    if is_linear(module):
        bias: Any = getattr(module, "bias", None)
        count = weights_of(module) + (bias.numel() if bias is not None else 0)
        yield list(module_tensors(module)), count, is_narrow(module)
        return
    for parameter in module.parameters(recurse=False):
        yield [parameter], parameter.numel(), has_low_bits(parameter)


def module_kind(modules: dict[str, nn.Module], path: str, head: Any) -> tuple[ModuleKind, int]:
    """Return a module's kind, and n if a decode step reads 1/n of its weights: an embedding's rows, else 1."""
    from torch import nn

    module, names = modules[path], path.split(".")
    if module is head:
        return "output layer", 1
    if isinstance(module, nn.Embedding):
        return "embedding rows", module.num_embeddings
    if "experts" in names:
        return "experts", 1
    for length in range(len(names), 0, -1):
        both = names[length - 1], type(modules[".".join(names[:length])]).__name__
        for kind, pattern in NAMES.items():
            if any(map(pattern.fullmatch, both)):
                return kind, 1
    return "other", 1


def quantizable_share(loader: Loader, model: PreTrainedModel) -> float:
    """Return the share of a 16-bit model's weights that a quantization covers; the model may be on the meta device."""
    from torch import nn

    head: Any = model.get_output_embeddings()
    total = quantized = 0
    seen = set()
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding) and (head is None or module.weight is not head.weight):
            continue
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                total += parameter.numel()
                is_linear_weight = type(module) is nn.Linear and module is not head
                if is_linear_weight or (loader.quantizes_experts and is_fused_expert(path, module, parameter)):
                    quantized += parameter.numel()
    return quantized / total


def refusal(loader: Loader, coverage: WeightCoverage | None) -> str | None:
    """Return an error message if less than half of a model is quantized, else None."""
    if coverage is None or coverage.unquantized_share <= LARGEST_UNQUANTIZED:
        return None
    experts = coverage.kinds.get("experts")
    is_fused = loader.packages and experts is not None and not experts.quantized_parameters
    limit = (
        f"; {loader.packages[0]} does not quantize these experts, which are fused in 3-D parameters" if is_fused else ""
    )
    return f"less than half of the model is {loader.name}: {coverage.words}{limit}; measure the unquantized model"
