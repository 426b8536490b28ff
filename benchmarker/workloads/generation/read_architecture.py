"""Derivation of an `Architecture` from a model's modules and config. The model may be on the meta device.

The kind of a layer is derived from attributes of its mixer, because class names and config keys differ between versions
of transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints import read_model
from benchmarker.checkpoints.dummy import model_of
from benchmarker.core.errors import ModelError, UnsupportedError
from benchmarker.quantization.load import (
    flat,
    is_linear,
    module_tensors,
    parameter_count,
    shares_storage,
    storage_bytes,
    weights_of,
)
from benchmarker.workloads.generation.architecture import DESCRIBED, Architecture, Experts, Layer, MixerKind

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

LAYER_TYPES = {
    "full_attention": "full attention",
    "attention": "full attention",
    "sliding_attention": "sliding window",
    "linear_attention": "state",
    "mamba": "state",
    "conv": "state",
    "hybrid": "state",
    "moe": "none",
    "mlp": "none",
}
"""Kind of mixer by the name in `layer_types` of transformers' configs; earlier names are included."""
STATE_VALUE_BYTES = 4  # Recurrent states are stored in float32.


def describe(model: PreTrainedModel, *, shares: int = 1, kv_value_bytes: float | None = None) -> Architecture:
    """Return the architecture of a model. Call this before an engine replaces modules.

    Args:
        shares: Number of GPUs among which every weight is divided; the sizes are those of one GPU.
        kv_value_bytes: Bytes per value of a quantized KV cache; None for a cache in the activations' type.

    Raises:
        UnsupportedError: The architecture is unknown; the message contains the reason.
    """
    config: Any = model.config.get_text_config(decoder=True)
    if type(model).__module__.startswith("transformers_modules"):
        raise UnsupportedError(f"the code of {type(model).__name__} comes from the model's own repository")
    if config.model_type not in DESCRIBED:
        raise UnsupportedError(f"the architecture '{config.model_type}' is not described (docs/models.md lists others)")
    kinds = _layer_kinds(config)
    layers = tuple(
        _layer(module, kind, config, shares=shares, value_bytes=_activation_bytes(model))
        for module, kind in zip(read_model.decoder_layers(model), kinds, strict=True)
    )
    layer_kinds = {kind for layer in layers for kind in (*layer.mixers, layer.feed_forward)}
    unknown = sorted(layer_kinds - {*DESCRIBED[config.model_type], "none"})
    if unknown:
        raise UnsupportedError(f"'{config.model_type}' is described without layers of kind {' and '.join(unknown)}")
    return _with_weights(model, config, layers, shares, kv_value_bytes or _activation_bytes(model))


def on_meta(config: Mapping[str, Any], dtype: str) -> PreTrainedModel | None:
    """Return a model on the meta device, built from a parsed config.json; None if transformers cannot build it."""
    read_model.import_libraries()
    import torch
    from transformers import AutoConfig

    try:
        with read_model.model_errors("the config"):
            return model_of(AutoConfig.for_model(**config), dtype=getattr(torch, dtype))
    except ModelError:
        return None


def _with_weights(
    model: PreTrainedModel, config: Any, layers: tuple[Layer, ...], shares: int, value_bytes: float
) -> Architecture:
    head: Any = model.get_output_embeddings()
    tables: list[Any] = [module for module in model.modules() if hasattr(module, "num_embeddings")]
    # A tied embedding is read whole, as the output layer. Of an untied embedding, only one row per sequence is read.
    looked_up = [table for table in tables if head is None or not shares_storage(head.weight, table.weight)]
    containers = expert_containers(model)
    experts = _experts(containers, config, shares)
    skipped = {id(tensor) for module in looked_up for tensor in module_tensors(module)}
    skipped |= {id(tensor) for container in containers for tensor in _all_tensors(container)}
    parameters = parameter_count(model)
    named: dict[str, Any] = {name.rpartition(".")[2]: module for name, module in model.named_modules()}
    per_layer = named["embed_tokens_per_layer"].weight.numel() if "embed_tokens_per_layer" in named else 0
    idle = (experts.count - experts.per_token) * experts.weights_each if experts else 0
    return Architecture(
        model_type=config.model_type,
        layers=layers,
        read_bytes=storage_bytes(
            tensor for module in model.modules() for tensor in module_tensors(module) if id(tensor) not in skipped
        ),
        row_bytes=sum(
            part[0].numel() * part.element_size() for table in tables for part in flat(table.weight) if part.ndim
        ),
        other_weights=_multiplied_outside(model, [*tables, head]) // shares - sum(layer.weights for layer in layers),
        head=weights_of(head) // shares if head is not None else 0,
        parameters=parameters,
        active_parameters=parameters - idle * shares - per_layer,
        value_bytes=value_bytes,
        experts=experts,
    )


def expert_containers(model: nn.Module) -> list[Any]:
    """Return for each MoE layer the module that contains its routed experts: fused tensors, or a list of modules."""
    return [module for name, module in model.named_modules() if name.rpartition(".")[2] == "experts"]


def _experts(containers: list[Any], config: Any, shares: int) -> Experts | None:
    if not containers:
        return None
    per_token = read_model.experts_per_token(config)
    count = getattr(containers[0], "num_experts", None) or len(list(containers[0].children()))
    if per_token is None:
        raise UnsupportedError("its config does not state the experts per token")
    weights = sum(multiplied(module) for container in containers for module in container.modules())
    size_bytes = storage_bytes(tensor for container in containers for tensor in _all_tensors(container))
    return Experts(count, per_token, size_bytes // count, weights // count // shares)


def _all_tensors(module: nn.Module) -> Iterator[Tensor]:
    for inner in module.modules():
        yield from module_tensors(inner)


def multiplied(module: nn.Module) -> int:
    """Return the number of a module's own weights that are multiplied: matrices, fused experts and convolutions."""
    if is_linear(module):
        return weights_of(module)
    # In fused experts, weights have three dimensions, and a matrix contains the biases of all experts.
    least = 3 if any(tensor.ndim == 3 for tensor in module.parameters(recurse=False)) else 2
    return sum(tensor.numel() for tensor in module.parameters(recurse=False) if tensor.ndim >= least)


def _multiplied_outside(model: nn.Module, skipped: list[Any]) -> int:
    """Return the number of weights used per token, without routed experts and the modules `skipped`."""
    within = {
        id(module) for container in (*expert_containers(model), *skipped) if container for module in container.modules()
    }
    return sum(multiplied(module) for module in model.modules() if id(module) not in within)


def _layer_kinds(config: Any) -> list[str]:
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        has_window = getattr(config, "sliding_window", None) is not None
        kinds = ["sliding_attention" if has_window else "full_attention"] * config.num_hidden_layers
    for number, kind in enumerate(kinds):
        if kind not in LAYER_TYPES:
            raise UnsupportedError(f"layer {number} is of kind '{kind}', which is not described")
    return [LAYER_TYPES[kind] for kind in kinds]


def _layer(module: nn.Module, kind: str, config: Any, *, shares: int, value_bytes: int) -> Layer:
    mixers = [(mixer, inner) for inner in module.modules() if (mixer := _mixer(inner, kind))]
    if not mixers and kind != "none":
        raise UnsupportedError(f"a layer of kind '{kind}' has no module that is described")
    sizes: dict[str, Any] = {}
    for mixer, inner in mixers:
        sizes |= _sizes(mixer, inner, config, shares, value_bytes)
    has_others = _multiplied_outside(module, [inner for _, inner in mixers]) > 0
    return Layer(
        mixers=tuple(mixer for mixer, _ in mixers) or ("none",),
        feed_forward="MoE" if expert_containers(module) else "dense" if has_others else "none",
        weights=_multiplied_outside(module, []) // shares,
        window=config.sliding_window if kind == "sliding window" else None,
        **sizes,
    )


def _mixer(module: Any, kind: str) -> MixerKind | None:
    if hasattr(module, "ssm_state_size"):
        return "state space"
    if hasattr(module, "head_k_dim"):
        return "linear attention"
    if type(module).__name__.endswith("ShortConv"):
        return "short convolution"
    if hasattr(module, "kv_lora_rank"):
        return "MLA"
    if type(module).__name__.endswith("Attention"):
        return "sliding window" if kind == "sliding window" else "full attention"
    return None


def _sizes(mixer: MixerKind, module: Any, config: Any, shares: int, value_bytes: int) -> dict[str, int | bool]:
    heads = config.num_attention_heads
    if mixer == "MLA":
        # Newer versions of transformers cache the latent and expand it in each step.
        is_latent = hasattr(module, "expand_kv")
        expanded = heads * (module.qk_head_dim + module.v_head_dim)
        return {
            "kv_values": module.kv_lora_rank + module.qk_rope_head_dim if is_latent else expanded // shares,
            "score_flops": 2 * expanded // shares,
            "position_flops": 2 * weights_of(module.kv_b_proj) // shares if is_latent else 0,
        }
    if mixer in ("full attention", "sliding window"):
        dim = getattr(module, "head_dim", None) or read_model.head_dim(config)
        groups = getattr(module, "num_key_value_groups", None)
        shared = bool(getattr(module, "is_kv_shared_layer", False))
        cached_heads = heads // groups if groups else read_model.key_heads(config)
        return {
            "kv_values": 0 if shared else 2 * cached_heads * dim // shares,
            "score_flops": 4 * heads * dim // shares,
            "shares_kv": shared,
        }
    convolution = getattr(module, "conv1d", None) or module.conv
    state, products = 0, 0
    if mixer == "linear attention":
        # 3 products per number of the state: read for the key, add an outer product, read for the query.
        state, products = module.num_v_heads * module.head_k_dim * module.head_v_dim, 3
    if mixer == "state space":
        # 2 products per number of the state: add an outer product, read for C.
        state, products = module.num_heads * module.head_dim * module.ssm_state_size, 2
    state_bytes = STATE_VALUE_BYTES * state + value_bytes * convolution.weight.numel()
    return {"state_bytes": state_bytes // shares, "state_flops": 2 * products * state // shares}


def _activation_bytes(model: nn.Module) -> int:
    return next(tensor.element_size() for tensor in model.parameters() if tensor.is_floating_point())
