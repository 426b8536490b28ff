"""GGUF files through transformers, which dequantizes all but a few architectures while loading.

A dequantized model has the quality of the file, but time and memory of an unquantized model; a note reports this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.checkpoints.gguf_file import GgufFacts, gguf_facts
from benchmarker.checkpoints.read_model import read_model
from benchmarker.quantization.base import FormOptions, Loaded, Loader
from benchmarker.schema.model import TensorTypes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PACKED_LINEAR = "GgufLinear"  # transformers' class of a linear whose weight stays packed.


def load(checkpoint: Checkpoint, options: FormOptions, target: Target) -> Loaded:  # noqa: ARG001
    facts = gguf_facts(checkpoint.folder)
    model = read_model(checkpoint, target)
    types = TensorTypes(
        tensors_by_type=facts.tensors_by_type,
        weight_bytes_by_type=facts.bytes_by_type,
        output_type=facts.output,
        is_tied=facts.is_tied,
    )
    return Loaded(model, notes=_unpacked(facts, model, target), file_types=types)


def _unpacked(facts: GgufFacts, model: PreTrainedModel, target: Target) -> tuple[str, ...]:
    if not facts.packed_parameters:
        return ()
    packed = sum(type(module).__name__ == PACKED_LINEAR for module in model.modules())
    if packed:
        return (f"transformers keeps {packed} linear layers in the file's blocks ({PACKED_LINEAR})",)
    return (f"transformers unpacked the file to {target.dtype}: bytes and time are those of plain weights",)


LOADER: Loader = Loader(
    name="gguf",
    summary="a GGUF file through transformers, which unpacks most of them",
    options=FormOptions,
    packages=("gguf",),
    load=load,
    reads=lambda stored: stored.get("quant_method") == "gguf",
)
