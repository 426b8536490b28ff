"""The output layer in int8, an option of every form: `--option lm_head=int8`.

Every form leaves the output layer in 16 bit. Of what a 4-bit Qwen3-4B reads for a token, that layer is a third.
torchao's weight-only int8, a scale for each row, halves it. Where the model shares the layer with its embedding, the
embedding stays as it is and the layer becomes a tensor of its own: less to read for each token, and more to store.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.base import Target
from benchmarker.core.errors import MissingLibraryError, UnsupportedError
from benchmarker.core.packages import install_hint, installed_version
from benchmarker.quantization.base import FormOptions, Loaded, Options

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
