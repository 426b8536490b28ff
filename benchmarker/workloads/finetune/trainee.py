"""A loaded model made trainable by peft and transformers, with every switch of the recipe.

Frozen weights stay as the loader stored them, except with `prepare: peft`: peft's `prepare_model_for_kbit_training`
converts everything that is not quantized to float32 (norms, embedding, output layer), and activations follow. With
`keep` they are unchanged, and autocast multiplies the float32 adapters in the model's type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.hardware.device import Device
from benchmarker.quantization.load import is_linear, module_tensors, storage_bytes, weights_of
from benchmarker.schema.base import DType
from benchmarker.workloads.finetune.spec import ALL_LINEAR, Recipe
from benchmarker.workloads.finetune.training_flops import ModelAttention
from benchmarker.workloads.training.training_step import TrainingStep, autocast

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

LEARNING_RATES = {"full": 1e-5, "lora": 1e-4}
"""Learning rates of the timed steps: common first choices. The time does not depend on them."""
CHECKPOINT_FUNCTION = "_gradient_checkpointing_func"
"""Attribute of a checkpointed layer that holds transformers' checkpointing function."""


@dataclass(frozen=True)
class Linears:
    """Weights of linear layers, counted before adapters are added."""

    total: int
    """All weights; those of the output layer too, tied or not, since it is multiplied."""
    in_layers: int
    """Weights without the output layer."""
    packed: int
    """Layers stored in 4 bits."""


@dataclass(frozen=True)
class Trainee:
    recipe: Recipe
    model: Any
    """Returns logits and a loss."""
    base: Any
    """The model without peft's outer wrapper."""
    linears: Linears
    device: Device
    dtype: DType
    """Type of weights that are not quantized."""

    @property
    def trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @property
    def is_autocast(self) -> bool:
        """True if products use the model's type whatever their operands' type."""
        if self.dtype == "float32":
            return False
        is_mixed = self.recipe.prepare == "keep" and self.recipe.train == "lora"
        return is_mixed or self.recipe.prepare == "autocast"

    def around(self) -> AbstractContextManager[Any]:
        return autocast(self.device.torch_name, self.dtype) if self.is_autocast else nullcontext()

    def loss(self, ids: Tensor) -> Tensor:
        """Return the mean cross entropy of each next token, with its graph.

        Args:
            ids: [batch, length]
        """
        with self.around():
            loss: Tensor = self.model(input_ids=ids, labels=ids, use_cache=False).loss
        return loss

    def optimizer(self, *, learning_rate: float | None = None) -> Optimizer:
        import torch

        rate = learning_rate or LEARNING_RATES[self.recipe.train]
        if self.recipe.optimizer in ("adamw", "adamw-fused"):
            fused = self.recipe.optimizer == "adamw-fused"
            return torch.optim.AdamW(self.trained, lr=rate, weight_decay=0.0, fused=fused)
        import bitsandbytes

        name = "PagedAdamW8bit" if self.recipe.optimizer == "paged-adamw8bit" else "AdamW8bit"
        optimizer: Optimizer = getattr(bitsandbytes.optim, name)(self.trained, lr=rate, weight_decay=0.0)
        return optimizer

    def frozen_tensors(self) -> Iterator[Tensor]:
        """Yield all tensors that are not trained, the quantization's scales included."""
        trained = {id(parameter) for parameter in self.trained}
        for module in self.model.modules():
            yield from (tensor for tensor in module_tensors(module) if id(tensor) not in trained)

    @property
    def weight_bytes(self) -> int:
        return storage_bytes(self.frozen_tensors())

    def wrap_recomputing(self, step: TrainingStep) -> None:
        """Annotate repeated forward passes in profiled steps."""
        for module in self.model.modules():
            function = getattr(module, CHECKPOINT_FUNCTION, None)
            if function is not None:
                original = getattr(function, "original", function)
                setattr(module, CHECKPOINT_FUNCTION, _Annotated(original, step))


class _Annotated:
    def __init__(self, original: Callable[..., Any], step: TrainingStep) -> None:
        self.original = original
        self._step = step

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return self.original(self._step.recomputing(function), *arguments, **named)


def make_trainee(model: Any, recipe: Recipe, device: Device, *, dtype: DType, seed: int) -> Trainee:
    """Make a loaded model trainable, in place.

    Args:
        dtype: Type of weights that are not quantized.
        seed: Seed of the adapters' initial values.

    Raises:
        SpecError: The model has no linear layer, or none of the named ones.
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
        # Older releases of transformers have only the second name.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    base = model
    if recipe.train == "lora":
        # Checkpointing needs inputs with a gradient. Without checkpointing they have one too, for a fair comparison.
        model.enable_input_require_grads()
        torch.manual_seed(seed)
        model = _with_adapters(model, recipe)
    model.train()
    return Trainee(recipe, model, base, linears, device, dtype)


def _check_targets(model: Any, recipe: Recipe) -> None:
    """Raise SpecError for a model without linear layers, or a target that no layer has; peft would ignore the latter
    if another target matches."""
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


def _with_adapters(model: Any, recipe: Recipe) -> Any:
    from peft import LoraConfig, get_peft_model

    from benchmarker.checkpoints.read_model import undisturbed

    targets = recipe.targets if recipe.targets == ALL_LINEAR else recipe.targets.split(",")
    settings = LoraConfig(
        r=recipe.rank,
        lora_alpha=2 * recipe.rank,
        lora_dropout=0.0,
        target_modules=targets,
        bias="none",
        task_type="CAUSAL_LM",
    )
    # peft imports gptqmodel if it is installed, which sets torch's allocator for the whole process.
    with undisturbed():
        return get_peft_model(model, settings)


def count_linears(model: Any) -> Linears:
    head = model.get_output_embeddings()
    linears = [module for module in model.modules() if is_linear(module)]
    return Linears(
        total=sum(weights_of(module) for module in linears),
        in_layers=sum(weights_of(module) for module in linears if module is not head),
        packed=sum(type(module).__name__ == "Linear4bit" for module in linears),
    )


def attention_of(model: Any) -> ModelAttention:
    config = model.config.get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return ModelAttention(config.num_hidden_layers, config.num_attention_heads, head_dim)
