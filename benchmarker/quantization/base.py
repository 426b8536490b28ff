"""Loader of a quantization: typed options, and a function that turns a checkpoint into a model on a device.

A loader file imports neither torch nor its library at the top, so that a missing library affects one variant only.

The output layer stays in 16 bits in every quantization, although it is a third of the bytes that a 4-bit Qwen3-4B reads
per token. `--option lm_head=int8` quantizes it with torchao, which halves its bytes. If tied to the embedding, the
output layer becomes a separate tensor: fewer bytes to read per token, more to store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from benchmarker.checkpoints.base import Checkpoint, Packing, Progress, Target
from benchmarker.checkpoints.dummy import empty_model
from benchmarker.checkpoints.read_model import read_model
from benchmarker.core.errors import (
    DeviceError,
    MissingLibraryError,
    SpecError,
    UnsupportedError,
    install_hint,
    installed_version,
)
from benchmarker.schema.base import DType, Plain, Split
from benchmarker.schema.model import TensorTypes

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel


class Options(Plain):
    """Options of a loader, all scalars, given as `--option key=value`."""


class FormOptions(Options):
    lm_head: Literal["int8"] | None = None
    """Quantize the output layer too, to int8 by torchao with a scale per row; null keeps 16 bits. An output layer
    that is tied to the embedding becomes a separate tensor, and the embedding stays."""


@dataclass(frozen=True)
class Loaded:
    model: PreTrainedModel
    notes: tuple[str, ...] = ()  # Stored in LoadFacts.notes.
    file_types: TensorTypes | None = None  # Stored in LoadFacts.file_types.


@dataclass(frozen=True)
class Loader:
    name: str
    summary: str  # Text for --help: `torchao int8, weight only`.
    options: type[Options]
    load: Callable[[Checkpoint, Any, Target], Loaded]
    """Raises a BenchmarkerError for an unsupported checkpoint, if possible before any weight is read."""
    packages: tuple[str, ...] = ()  # pip names of libraries beyond torch and transformers.
    gpu_packages: tuple[str, ...] = ()  # Packages that supply the kernels on a GPU.
    check: Callable[[Any, Target], None] = lambda options, target: None
    prepare: Callable[[Checkpoint, Any, Target, Progress], Checkpoint] = lambda checkpoint, *_: checkpoint
    """Returns the checkpoint that `load` gets. GPTQ quantizes it here and caches the result on disk."""
    reads: Callable[[dict[str, Any]], bool] = lambda stored: False
    """Returns whether this loader loads a checkpoint with this `quantization_config` without quantizing it."""
    stored_options: Callable[[dict[str, Any]], dict[str, Any]] = lambda stored: {}
    """Maps a `quantization_config` that `reads` accepts to the options that it determines: `{"bits": 4}`."""
    unpacked_unless: str | None = None
    """Devices or schemes, as text, for which transformers keeps a stored checkpoint packed; None for all."""
    stored_only: str | None = None  # Error text for an unquantized checkpoint; None if the loader quantizes.
    packing: Packing | None = None
    """Format of a dummy checkpoint; None for 16-bit weights that are quantized while loading."""
    aliases: tuple[str, ...] = ()  # Unambiguous other names: `nf4`.
    dtypes: tuple[DType, ...] = get_args(DType)  # Supported types of tensors that are not quantized.
    quantizes_experts: bool = False  # True if experts fused in 3-D parameters are quantized.
    splits: tuple[Split, ...] = ()  # Supported splits of the model over several GPUs.
    bits: tuple[int, ...] = ()  # Supported bits per quantized weight.
    extra_tensors: Callable[[nn.Module], Iterator[torch.Tensor]] = lambda module: iter(())
    """Yields the tensors of a module that are neither parameters nor buffers, such as scales."""

    @property
    def has_low_bits(self) -> bool:
        return min(self.bits, default=16) < 16


def require(variant: str, *packages: str) -> None:
    for package in packages:
        if installed_version(package) is None:
            raise MissingLibraryError(f"{variant}: the library '{package}' is not installed; {install_hint(variant)}")


def own_config_notes(title: str, own: dict[str, Any], options: Options) -> tuple[str, ...]:
    """Return notes: the checkpoint is quantized, and its own config overrides these `options`."""
    choices = options.model_dump(include=options.model_fields_set & own.keys())
    unused = [f"{key}={value}" for key, value in choices.items() if own[key] != value]
    note = f"the checkpoint is {title} ({', '.join(f'{key}={value}' for key, value in own.items())})"
    return (note, f"its own config won over {', '.join(unused)}") if unused else (note,)


@dataclass(frozen=True)
class TorchGpu:
    name: str
    capability: tuple[int, int]
    nvidia: bool

    def __str__(self) -> str:
        return f"{self.name} ({'.'.join(map(str, self.capability))})"


def torch_gpu(device: str) -> TorchGpu | None:
    import torch

    if device == "cpu":
        return None
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    return TorchGpu(name, capability, nvidia=torch.version.hip is None)


FP8_CAPABILITY = (8, 9)  # Lowest compute capability of NVIDIA GPUs with FP8 tensor cores.


def check_nvidia(quant: str, device: str, capability: tuple[int, int], *, instead: str) -> None:
    """Raise DeviceError unless the device is an NVIDIA GPU with at least this compute capability."""
    gpu = torch_gpu(device)
    if gpu is None or not gpu.nvidia or gpu.capability < capability:
        least = ".".join(map(str, capability))
        found = f"this is {gpu or 'the CPU'}. {instead}"
        raise DeviceError(f"{quant}: needs an NVIDIA GPU of compute capability {least}; {found}")


def has_int8_head(options: Options) -> bool:
    return isinstance(options, FormOptions) and options.lm_head is not None


def check_supported(loader: Loader, options: Options, target: Target) -> None:
    """Raise a BenchmarkerError if a library is missing, or the device or dtype is not supported."""
    require(loader.name, *loader.packages)
    loader.check(options, target)
    if target.dtype not in loader.dtypes:
        dtypes = " or ".join(loader.dtypes)
        raise SpecError(f"{loader.name}: computes in {dtypes}, not {target.dtype}; use --dtype {dtypes}")
    if has_int8_head(options) and installed_version("torchao") is None:
        raise MissingLibraryError(f"lm_head=int8: the library 'torchao' is not installed; {install_hint('int8')}")


EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys of a config.json with the number of experts."""
ONE_BY_ONE = "experts run one after the other (experts_implementation=eager): torchao has no batched product for them"


def load_by_torchao(checkpoint: Checkpoint, target: Target, config: Any) -> Loaded:
    """Load a model and quantize it with torchao's `config`; a checkpoint that torchao saved has its own config."""
    from torchao.quantization import FqnToConfig
    from transformers import TorchAoConfig

    if checkpoint.fused_experts:
        config = FqnToConfig({"_default": config, **dict.fromkeys(checkpoint.fused_experts, config)})
    quantization = TorchAoConfig(config) if checkpoint.quantization is None else None
    model = read_model(checkpoint, target, quantization=quantization)
    if not checkpoint.fused_experts:
        return Loaded(model)
    model.set_experts_implementation("eager")
    return Loaded(model, (ONE_BY_ONE,))


def reads_torchao(config_name: str) -> Callable[[dict[str, Any]], bool]:
    """Return a function for `Loader.reads` that accepts checkpoints saved with this config class of torchao."""
    return lambda stored: stored.get("quant_method") == "torchao" and _torchao_type(stored).get("_type") == config_name


def torchao_group(stored: dict[str, Any]) -> dict[str, Any]:
    """Return `{"group_size": 128}` for a checkpoint that torchao saved; {} if it has one scale per row."""
    data = _torchao_type(stored).get("_data") or {}
    granularity = data.get("granularity") or {}
    group = data.get("group_size") or (granularity.get("_data") or {}).get("group_size")
    return {"group_size": group} if group else {}


def _torchao_type(stored: dict[str, Any]) -> dict[str, Any]:
    default = (stored.get("quant_type") or {}).get("default")
    return default if isinstance(default, dict) else {}


def with_fused_experts(checkpoint: Checkpoint, *_: object) -> Checkpoint:
    """Return the checkpoint with `fused_experts` set to its expert weights of shape [experts, outputs, inputs].

    Weights of shape [experts, inputs, outputs] are left out: torchao would compute a scale per input, not per output.
    """
    if checkpoint.quantization is not None or not any(checkpoint.config.get(key) for key in EXPERT_COUNTS):
        return checkpoint
    model = empty_model(checkpoint.folder, trusted=checkpoint.trust_remote_code)
    names = (
        f"{path}.{name}"
        for path, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if is_fused_expert(path, module, parameter)
    )
    return replace(checkpoint, fused_experts=tuple(names))


def is_fused_expert(path: str, module: nn.Module, parameter: torch.Tensor) -> bool:
    return path.endswith("experts") and parameter.ndim == 3 and not getattr(module, "is_transposed", False)


def with_head(loaded: Loaded, options: Options) -> Loaded:
    """Quantize the output layer if the options request `lm_head=int8`; UnsupportedError if that is not possible."""
    if not has_int8_head(options):
        return loaded
    import torch
    from torch import nn
    from torchao.quantization import Int8WeightOnlyConfig, PerRow, quantize_

    model = loaded.model
    head: Any = model.get_output_embeddings()
    _check_plain(model, head)
    bias = head.bias is not None
    own = nn.Linear(head.in_features, head.out_features, bias=bias, device="meta", dtype=head.weight.dtype)
    own.weight, own.bias = nn.Parameter(head.weight.detach(), requires_grad=False), head.bias
    own.training = head.training
    how = Int8WeightOnlyConfig(granularity=PerRow(), set_inductor_config=False)
    with torch.no_grad():
        quantize_(own, how, filter_fn=lambda module, name: module is own)
    model.set_output_embeddings(own)
    embedding: Any = model.get_input_embeddings()
    dtype = str(embedding.weight.dtype).removeprefix("torch.")
    tied = f"; the embedding, which it was tied to, stays in {dtype}" if is_tied(model) else ""
    return replace(loaded, notes=(*loaded.notes, f"lm_head is int8 by torchao, a scale a row{tied}"))


def _check_plain(model: PreTrainedModel, head: Any) -> None:
    from torch import nn

    if head is None:
        raise UnsupportedError(f"lm_head=int8: {type(model).__name__} has no output layer; leave the option out")
    if type(head) is not nn.Linear or type(head.weight) is not nn.Parameter:
        raise UnsupportedError(
            f"lm_head=int8: the output layer is {type(head).__name__} with weights of {type(head.weight).__name__} "
            "already; leave the option out"
        )


def is_tied(model: PreTrainedModel) -> bool:
    return bool(model.config.get_text_config().tie_word_embeddings)
