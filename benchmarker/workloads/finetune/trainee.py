"""A loaded model made trainable by peft and transformers, its facts, and the FLOPs of a training step.

With `prepare: keep`, frozen weights are stored as loaded, and autocast multiplies the float32 adapters in the model's
type. With `prepare: peft`, peft's `prepare_model_for_kbit_training` converts all weights that are not quantized (norms,
embedding, output layer) to float32, and activations are then float32 too.

    linear    = tokens * (4 * frozen + 6 * trained)
    attention = 3.5 * 4 * batch * heads * head_dim * layers * S (S + 1) / 2
    recompute = tokens * 2 * checkpointed + attention / 3.5             with gradient checkpointing

A frozen weight costs 2 FLOPs per token forward and 2 for the gradient of its input; a trained weight costs 2 more for
its own gradient. The common "6 N per token" counts gradients that LoRA does not compute, and is 1.5 times too large.
Backward through attention is 2.5 times forward (Dao, arXiv 2307.08691, section 4). MFU counts linear + attention, HFU
linear + attention + recompute (Chowdhery et al., "PaLM", arXiv 2204.02311, appendix B). The look-up of the embedding,
norms and elementwise operations do not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from benchmarker.checkpoints.read_model import head_dim, undisturbed
from benchmarker.core.errors import SpecError, did_you_mean, installed_version
from benchmarker.hardware.device import Device
from benchmarker.quantization.load import is_linear, module_tensors, storage_bytes, weights_of
from benchmarker.schema.base import DType
from benchmarker.workloads.finetune.record import DTypes, FinetuneDemand, FinetuneFacts
from benchmarker.workloads.finetune.spec import ALL_LINEAR, FinetunePoint, Recipe
from benchmarker.workloads.training_step import TrainingStep, autocast

LEARNING_RATES = {"full": 1e-5, "lora": 1e-4}
"""Learning rates of the timed steps: common values. The time does not depend on them."""
CHECKPOINT_FUNCTION = "_gradient_checkpointing_func"
"""Attribute of a checkpointed layer that holds transformers' checkpointing function."""


class Linears(NamedTuple):
    """Counts of linear layers, before adapters are added."""

    total: int  # Number of weights, output layer included, even if it is tied to the embedding.
    in_layers: int  # Number of weights without the output layer.
    packed: int  # Number of layers stored in 4 bits.


@dataclass(frozen=True)
class Trainee:
    recipe: Recipe
    model: Any
    base: Any  # The model without peft's outer wrapper.
    linears: Linears
    device: Device
    dtype: DType  # Type of weights that are not quantized.

    @property
    def trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def loss(self, ids: Tensor) -> Tensor:
        """Return the mean cross entropy per predicted token, with its autograd graph. `ids`: [batch, length]."""
        recipe = self.recipe
        # With autocast, products use the model's type, also for float32 operands.
        is_autocast = recipe.prepare == "autocast" or (recipe.prepare == "keep" and recipe.train == "lora")
        with autocast(self.device.torch_name, self.dtype) if is_autocast else nullcontext():
            loss: Tensor = self.model(input_ids=ids, labels=ids, use_cache=False).loss
        return loss

    def optimizer(self, *, learning_rate: float | None = None) -> Optimizer:
        name, rate = self.recipe.optimizer, learning_rate or LEARNING_RATES[self.recipe.train]
        if name in ("adamw", "adamw-fused"):
            return torch.optim.AdamW(self.trained, lr=rate, weight_decay=0.0, fused=name == "adamw-fused")
        import bitsandbytes

        kind = "PagedAdamW8bit" if name == "paged-adamw8bit" else "AdamW8bit"
        optimizer: Optimizer = getattr(bitsandbytes.optim, kind)(self.trained, lr=rate, weight_decay=0.0)
        return optimizer

    def frozen_tensors(self) -> Iterator[Tensor]:
        """Yield all tensors that are not trained, the quantization's scales included."""
        trained = {id(parameter) for parameter in self.trained}
        for module in self.model.modules():
            yield from (tensor for tensor in module_tensors(module) if id(tensor) not in trained)

    def wrap_recomputing(self, step: TrainingStep) -> None:
        for module in self.model.modules():
            if (checkpoint := getattr(module, CHECKPOINT_FUNCTION, None)) is not None:
                # `original`: replace the wrapper of an earlier step instead of wrapping it.
                setattr(module, CHECKPOINT_FUNCTION, _annotated(getattr(checkpoint, "original", checkpoint), step))


def _annotated(original: Callable[..., Any], step: TrainingStep) -> Callable[..., Any]:
    def checkpoint(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return original(step.recomputing(function), *arguments, **named)

    checkpoint.original = original  # type: ignore[attr-defined]
    return checkpoint


def make_trainee(model: Any, recipe: Recipe, device: Device, *, dtype: DType, seed: int) -> Trainee:
    """Make a loaded model trainable, in place. Raises SpecError if it has none of the recipe's linear layers."""
    head = model.get_output_embeddings()
    modules = [module for module in model.modules() if is_linear(module)]
    linears = Linears(
        total=sum(map(weights_of, modules)),
        in_layers=sum(weights_of(module) for module in modules if module is not head),
        packed=sum(type(module).__name__ == "Linear4bit" for module in modules),
    )
    _check_targets(model, recipe)
    model.config.use_cache = False
    model.requires_grad_(recipe.train == "full")
    if recipe.attention == "eager":
        model.set_attn_implementation("eager")
    if recipe.is_quantized and recipe.prepare in ("peft", "autocast"):
        from peft import prepare_model_for_kbit_training

        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    if recipe.checkpointing == "all":
        # Older releases of transformers have only `gradient_checkpointing_enable`.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    base = model
    if recipe.train == "lora":
        from peft import LoraConfig, get_peft_model

        # Checkpointing needs inputs that require a gradient. Other variants also have them, for a fair comparison.
        model.enable_input_require_grads()
        torch.manual_seed(seed)
        targets = recipe.targets if recipe.targets == ALL_LINEAR else recipe.targets.split(",")
        rank = recipe.rank
        settings = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, task_type="CAUSAL_LM")
        # peft imports gptqmodel if it is installed, and gptqmodel changes torch's allocator for the whole process.
        with undisturbed():
            model = get_peft_model(model, settings)
    model.train()
    return Trainee(recipe, model, base, linears, device, dtype)


def _check_targets(model: Any, recipe: Recipe) -> None:
    """Raise SpecError if the model has no linear layers, or a target names none (peft may ignore such a target)."""
    head = model.get_output_embeddings()
    names = {name for name, module in model.named_modules() if is_linear(module) and module is not head}
    if not names:
        raise SpecError(
            f"{type(model).__name__}: none of its layers holds a linear layer (torch.nn.Linear), whose weights and "
            "operations could be counted; choose another model"
        )
    if recipe.train == "lora" and recipe.targets != ALL_LINEAR:
        endings = {name.rpartition(".")[2] for name in names}
        for target in recipe.targets.split(","):
            if not any(f".{name}".endswith(f".{target}") for name in names):
                raise SpecError(f"--targets {target}: no linear layer has this name{did_you_mean(target, endings)}")


def built_facts(
    trainee: Trainee, optimizer: Optimizer | None = None, ids: Tensor | None = None, *, frozen: str | None = None
) -> FinetuneFacts:
    """Return the facts of a trainee. With `optimizer`, after its first step, and `ids`, [batch, length], they include
    types and the bytes of the optimizer's state. `frozen`: hash of the frozen weights before the first step."""
    recipe, linears, trained = trainee.recipe, trainee.linears, trainee.trained
    is_lora, is_checkpointed = recipe.train == "lora", recipe.checkpointing == "all"
    matrices = sum(parameter.numel() for parameter in trained if parameter.ndim == 2) if is_lora else linears.total
    checkpointed = linears.in_layers + (matrices if is_lora else 0) if is_checkpointed else 0
    states = (optimizer.state if optimizer else {}).values()
    tensors = [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
    return FinetuneFacts(
        trained_parameters=sum(parameter.numel() for parameter in trained),
        trained_linear_weights=matrices,
        frozen_linear_weights=linears.total if is_lora else 0,
        checkpointed_linear_weights=checkpointed,
        weight_bytes=storage_bytes(trainee.frozen_tensors()),
        trained_bytes=sum(tensor.nbytes for tensor in (*trained, *trained, *tensors)),
        adapted_layers=sum(hasattr(module, "lora_A") for module in trainee.model.modules()),
        dequantize_calls=(3 if is_checkpointed else 2) * linears.packed if linears.packed else None,
        dtypes=DTypes() if ids is None else _seen_dtypes(trainee, tensors, ids),
        frozen_sha256=frozen,
        peft=installed_version("peft") if is_lora else None,
    )


def _seen_dtypes(trainee: Trainee, state: list[Tensor], ids: Tensor) -> DTypes:
    """Run one forward pass and return the types of its tensors, of weights, and of the optimizer's state."""
    head = trainee.base.get_output_embeddings()
    inputs: list[str] = []
    queries: list[str] = []

    class Watching(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is scaled_dot_product_attention:
                queries.append(_dtype_name(args[0]))
            return function(*args, **(kwargs or {}))

    handle = head.register_forward_pre_hook(lambda module, arguments: inputs.append(_dtype_name(arguments[0])))
    try:
        with torch.no_grad(), Watching():
            trainee.loss(ids)
    finally:
        handle.remove()
    norms = (module.weight for module in trainee.base.modules() if "Norm" in type(module).__name__)
    # Tensors with a single number are step counters.
    moments = (tensor for tensor in state if tensor.numel() > 1)
    return DTypes(
        head_input=next(iter(inputs), None),
        head_weight=_dtype_name(head.weight),
        attention_query=queries[-1] if queries else None,
        norm_weight=next(map(_dtype_name, norms), None),
        trained=_dtype_name(trainee.trained[0]),
        optimizer_state=next(map(_dtype_name, moments), None),
    )


def frozen_sha256(trainee: Trainee) -> str | None:
    """Return a hash that changes if any one number of the frozen weights changes; None if no weights are frozen."""
    if trainee.recipe.train == "full":
        return None
    digest = hashlib.sha256()
    with torch.no_grad():
        for tensor in trainee.frozen_tensors():
            flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
            words = flat.view(torch.int32) if flat.numel() % 4 == 0 and flat.data_ptr() % 4 == 0 else flat
            # A sum of all words does not detect a swap of neighbours; a sum of every second word does.
            digest.update(f"{words.sum(dtype=torch.int64).item()},{words[::2].sum(dtype=torch.int64).item()};".encode())
    return digest.hexdigest()


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def attention_pair_flops(model: Any) -> int:
    """Return the FLOPs of attention's forward pass per (query, key) pair: 4 * layers * heads * head_dim."""
    config = model.config.get_text_config()
    return int(4 * config.num_hidden_layers * config.num_attention_heads * head_dim(config))


def demand_of(facts: FinetuneFacts, pair_flops: int, point: FinetunePoint) -> FinetuneDemand:
    sequences, checkpointed = point.batch_size * point.accumulate, facts.checkpointed_linear_weights
    tokens = sequences * point.seq_len
    linear = tokens * (4 * facts.frozen_linear_weights + 6 * facts.trained_linear_weights)
    forward = sequences * pair_flops * (point.seq_len * (point.seq_len + 1) // 2)
    return FinetuneDemand(
        flops=linear + round(3.5 * forward),
        linear_flops=linear,
        recompute_flops=tokens * 2 * checkpointed + forward if checkpointed else 0,
        tokens=tokens,
    )
