"""What a loader is: options with types, and a function that turns a checkpoint on disk into a model on a device.

A loader file imports neither torch nor its quantization library at the top, so that a missing library is that one
variant's problem, and checking a config needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from benchmarker.checkpoints.base import Checkpoint, Packing, Progress, Target
from benchmarker.core.errors import MissingLibraryError, UnsupportedError
from benchmarker.core.packages import install_hint, installed_version
from benchmarker.schema.base import DType, Plain, Split
from benchmarker.schema.model import TensorTypes

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

    from benchmarker.profiling.categories import Category


class Options(Plain):
    """A loader's own options. Every value is a scalar, so that it can be given as `--option key=value`."""


class FormOptions(Options):
    """What every quantization can be asked for beside its own options."""

    lm_head: Literal["int8"] | None = None
    """Quantize the output layer too, to int8 by torchao with a scale a row; null leaves it as it is. One tied to the
    embedding becomes a tensor of its own, and the embedding stays as it is."""


@dataclass(frozen=True)
class Loaded:
    """What a loader returns."""

    model: PreTrainedModel
    notes: tuple[str, ...] = ()
    """Goes into the record: see LoadFacts.notes."""
    file_types: TensorTypes | None = None
    """Likewise: see LoadFacts.file_types."""


def nothing(options: Any, target: Target) -> None:
    """Checks nothing."""


def as_it_is(checkpoint: Checkpoint, options: Any, target: Target, progress: Progress) -> Checkpoint:  # noqa: ARG001
    """Prepares nothing."""
    return checkpoint


def reads_none(stored: dict[str, Any]) -> bool:  # noqa: ARG001
    """Takes no checkpoint that is quantized already."""
    return False


def no_tensors(module: nn.Module) -> Iterator[torch.Tensor]:  # noqa: ARG001
    """Adds nothing to a module's parameters and buffers."""
    return iter(())


@dataclass(frozen=True)
class Loader:
    """One quantization."""

    name: str
    summary: str
    """For --help: `torchao int8, weight only`."""
    options: type[Options]
    packages: tuple[str, ...]
    """pip names of what it needs beyond torch and transformers."""
    load: Callable[[Checkpoint, Any, Target, Progress], Loaded]
    """Takes an instance of `options`, whose `lm_head` is not its business. Raises a BenchmarkerError for what the
    checkpoint, the device or the installed libraries cannot do, where it can before any weight is read."""
    check: Callable[[Any, Target], None] = nothing
    """Refuses what cannot work whatever the checkpoint: a missing library, a device or a type that the format has no
    code for. Called first, so that nothing is downloaded or made in vain."""
    prepare: Callable[[Checkpoint, Any, Target, Progress], Checkpoint] = as_it_is
    """Makes the checkpoint that `load` takes, where quantizing is too much to repeat: done once, cached on disk."""
    reads: Callable[[dict[str, Any]], bool] = reads_none
    """Whether it loads a checkpoint with this `quantization_config` in its config.json as it is."""
    stored_only: str | None = None
    """For a loader that takes no checkpoint but those that it `reads`: what to say of any other."""
    packing: Packing | None = None
    """How a dummy checkpoint looks; None where it holds 16-bit weights that are quantized while loading."""
    of_gguf: bool = False
    """Whether it loads GGUF files, and nothing else does."""
    aliases: tuple[str, ...] = ()
    """Other names that people type and that can mean nothing else: `nf4`."""
    dtypes: tuple[DType, ...] = get_args(DType)
    """Types of what is not quantized that it works with."""
    splits: tuple[Split, ...] = ()
    """How several GPUs can share a model in this form, as far as its library does it."""
    bits: tuple[int, ...] = ()
    """Bits of a quantized weight that it can store."""
    extra_tensors: Callable[[nn.Module], Iterator[torch.Tensor]] = no_tensors
    """Tensors that belong to a module's weight and are neither parameters nor buffers: scales, mostly. Called for every
    module of every model, so it looks before it takes."""
    kernels: Mapping[str, Category] = field(default_factory=dict)
    """Names of its kernels and operators as profiles have them, and what each is for. Whoever reads a profile has no
    loader at hand, so the rules that tell are in profiling/categories.py; a test holds them to these names."""


def require(variant: str, *packages: str) -> None:
    """Check that the pip packages are installed, without importing them.

    Raises:
        MissingLibraryError: One is not.
    """
    for package in packages:
        if installed_version(package) is None:
            raise MissingLibraryError(f"{variant}: the library '{package}' is not installed; {install_hint(variant)}")


def asks_for_head(options: Options) -> bool:
    """Whether a form's options ask for a quantized output layer."""
    return isinstance(options, FormOptions) and options.lm_head is not None


def check_head(options: Options) -> None:
    """Refuse what cannot work whatever the checkpoint.

    Raises:
        MissingLibraryError: torchao, which quantizes the layer, is not installed.
    """
    if asks_for_head(options) and installed_version("torchao") is None:
        raise MissingLibraryError(f"lm_head=int8: the library 'torchao' is not installed; {install_hint('int8')}")


def head_notes(options: Options, model: PreTrainedModel, target: Target) -> tuple[str, ...]:
    """For the record, that the output layer stayed in 16 bit; nothing where it is going to be quantized."""
    if asks_for_head(options):
        return ()
    tied = ", tied to the embedding" if _says_tied(model) else ""
    return (f"lm_head is not quantized: it stays in {target.dtype}{tied}",)


def with_head(loaded: Loaded, options: Options) -> Loaded:
    """The model with its output layer as the options ask for.

    Raises:
        UnsupportedError: The layer is none that can be quantized.
    """
    if not asks_for_head(options):
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
    # torchao would change inductor's flags for the whole process; every variant is compiled with the same ones.
    how = Int8WeightOnlyConfig(granularity=PerRow(), set_inductor_config=False)
    with torch.no_grad():
        quantize_(own, how, filter_fn=lambda module, name: module is own)
    model.set_output_embeddings(own)
    embedding: Any = model.get_input_embeddings()
    dtype = str(embedding.weight.dtype).removeprefix("torch.")
    tied = f"; the embedding, which it was tied to, stays in {dtype}" if _says_tied(model) else ""
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


def _says_tied(model: PreTrainedModel) -> bool:
    """Whether the architecture shares the output layer with the embedding."""
    return bool(model.config.get_text_config().tie_word_embeddings)
