"""What a loader is: options with types, and a function that turns a checkpoint on disk into a model on a device.

A loader file imports neither torch nor its quantization library at the top, so that a missing library is that one
variant's problem, and checking a config needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from benchmarker.checkpoints.base import Checkpoint, Packing, Progress, Target
from benchmarker.core.errors import MissingLibraryError
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
