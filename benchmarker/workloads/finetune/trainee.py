"""A loaded model made ready for training, as peft and transformers do it, with every switch of the recipe.

What is frozen stays as the loader stored it, but for `prepare: peft`: peft's `prepare_model_for_kbit_training` makes
float32 of everything that is not quantized, norms, embedding and output layer, and the activations follow. With
`keep` these stay, and autocast multiplies the float32 adapters in the model's type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.hardware.device import Device
from benchmarker.quantization.inspect import is_linear, module_tensors, storage_bytes, weights_of
from benchmarker.schema.base import DType
from benchmarker.workloads.finetune.demand import AttentionShape
from benchmarker.workloads.finetune.spec import ALL_LINEAR, Recipe
from benchmarker.workloads.training.training_step import TrainingStep

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

LEARNING_RATES = {"full": 1e-5, "lora": 1e-4}
"""Of the timed steps: common first choices. Time does not depend on them."""
CHECKPOINT_FUNCTION = "_gradient_checkpointing_func"
"""Where transformers keeps what a checkpointed layer is called through."""


@dataclass(frozen=True)
class Linears:
    """Weights of linear layers, counted before adapters are put around them."""

    total: int
    """The output layer included, tied or not: it is multiplied."""
    in_layers: int
    packed: int
    """Layers stored in 4 bits."""


@dataclass(frozen=True)
class Trainee:
    """What is trained, and how it is called."""

    recipe: Recipe
    model: Any
    """Returns logits and a loss."""
    base: Any
    """The model without what peft puts around the whole."""
    linears: Linears
    device: Device
    dtype: DType
    """Of what is not quantized."""

    @property
    def trained(self) -> list[nn.Parameter]:
        """Trained weights in the model's order."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @property
    def is_autocast(self) -> bool:
        """Whether products are made in the model's type whatever their operands' type."""
        if self.dtype == "float32":
            return False
        is_mixed = self.recipe.prepare == "keep" and self.recipe.train == "lora"
        return is_mixed or self.recipe.prepare == "autocast"

    def around(self) -> AbstractContextManager[Any]:
        """What a forward pass runs in."""
        import torch

        kind = "cpu" if self.device.kind == "cpu" else "cuda"
        return torch.autocast(kind, dtype=getattr(torch, self.dtype)) if self.is_autocast else nullcontext()

    def loss(self, ids: Tensor) -> Tensor:
        """Mean cross entropy of each next token, with its graph.

        Args:
            ids: [batch, length]
        """
        with self.around():
            loss: Tensor = self.model(input_ids=ids, labels=ids, use_cache=False).loss
        return loss

    def optimizer(self, *, learning_rate: float | None = None) -> Optimizer:
        """A new one, with nothing in its state."""
        return make_optimizer(self.recipe, self.trained, learning_rate or LEARNING_RATES[self.recipe.train])

    def frozen_tensors(self) -> Iterator[Tensor]:
        """All that is not trained, with what quantization keeps beside it."""
        trained = {id(parameter) for parameter in self.trained}
        for module in self.model.modules():
            yield from (tensor for tensor in module_tensors(module) if id(tensor) not in trained)

    @property
    def weight_bytes(self) -> int:
        """Of all that is not trained."""
        return storage_bytes(self.frozen_tensors())

    def wrap_recomputing(self, step: TrainingStep) -> None:
        """Let a profiled step say which forward passes are recomputations."""
        for module in self.model.modules():
            function = getattr(module, CHECKPOINT_FUNCTION, None)
            if function is not None:
                plain = getattr(function, "plain", function)
                setattr(module, CHECKPOINT_FUNCTION, _Recomputing(plain, step))


class _Recomputing:
    """A checkpointing function whose checkpointed function is annotated when it runs again."""

    def __init__(self, plain: Callable[..., Any], step: TrainingStep) -> None:
        self.plain = plain
        self._step = step

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return self.plain(self._step.recomputing(function), *arguments, **named)


def make_trainee(model: Any, recipe: Recipe, device: Device, *, dtype: DType, seed: int) -> Trainee:
    """Make a loaded model trainable, in place.

    Args:
        dtype: Of what is not quantized.
        seed: Of the adapters' first values.

    Raises:
        SpecError: There is nothing that could be trained by name: no linear layer, or none of those that were named.
    """
    import torch

    linears = count_linears(model)
    _check_targets(model, recipe)
    model.config.use_cache = False
    model.requires_grad_(recipe.train == "full")
    if recipe.attention == "eager":
        model.set_attn_implementation("eager")
    if recipe.is_quantized and recipe.prepare in ("peft", "autocast"):
        from peft import prepare_model_for_kbit_training

        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    if recipe.checkpointing == "all":
        # Older releases of transformers have the second name alone.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    base = model
    if recipe.train == "lora":
        # Variants with and without checkpointing then differ in that alone: it needs inputs with a gradient.
        model.enable_input_require_grads()
        torch.manual_seed(seed)
        model = _with_adapters(model, recipe)
    model.train()
    return Trainee(recipe, model, base, linears, device, dtype)


def _check_targets(model: Any, recipe: Recipe) -> None:
    """Refuse a model or a name without a linear layer; peft would leave out a name that another one makes up for.

    Raises:
        SpecError: With the names that there are.
    """
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
                raise SpecError(f"--targets {target}: no linear layer is called so{did_you_mean(target, endings)}")


def _with_adapters(model: Any, recipe: Recipe) -> Any:
    from peft import LoraConfig, get_peft_model

    from benchmarker.checkpoints.isolated_import import undisturbed

    targets = recipe.targets if recipe.targets == ALL_LINEAR else recipe.targets.split(",")
    settings = LoraConfig(
        r=recipe.rank,
        lora_alpha=2 * recipe.rank,
        lora_dropout=0.0,
        target_modules=targets,
        bias="none",
        task_type="CAUSAL_LM",
    )
    # It imports gptqmodel where that is installed, which sets torch's allocator for the whole process.
    with undisturbed():
        return get_peft_model(model, settings)


def make_optimizer(recipe: Recipe, parameters: list[nn.Parameter], learning_rate: float) -> Optimizer:
    """The recipe's optimizer, without weight decay: nothing then changes but by gradients."""
    import torch

    if recipe.optimizer in ("adamw", "adamw-fused"):
        fused = recipe.optimizer == "adamw-fused"
        return torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0, fused=fused)
    import bitsandbytes

    paged = recipe.optimizer == "paged-adamw8bit"
    kind = getattr(bitsandbytes.optim, "PagedAdamW8bit" if paged else "AdamW8bit")
    optimizer: Optimizer = kind(parameters, lr=learning_rate, weight_decay=0.0)
    return optimizer


def count_linears(model: Any) -> Linears:
    """Weights of the model's linear layers."""
    head = model.get_output_embeddings()
    linears = [module for module in model.modules() if is_linear(module)]
    inside = [weights_of(module) for module in linears if module is not head]
    return Linears(
        total=sum(map(weights_of, linears)),
        in_layers=sum(inside),
        packed=sum(type(module).__name__ == "Linear4bit" for module in linears),
    )


def attention_shape(model: Any) -> AttentionShape:
    """Of the whole model."""
    config = model.config.get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return AttentionShape(config.num_hidden_layers, config.num_attention_heads, head_dim)
