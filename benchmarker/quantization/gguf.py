"""GGUF files through transformers, which dequantizes all but a few architectures while loading.

A dequantized model has the quality of the file, but time and memory of an unquantized model; a note reports this.
"""

from __future__ import annotations

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.checkpoints.gguf_file import gguf_facts
from benchmarker.checkpoints.read_model import read_model
from benchmarker.quantization.base import FormOptions, Loaded, Loader

PACKED_LINEAR = "GgufLinear"  # transformers' class of a linear whose weight stays packed.


def load(checkpoint: Checkpoint, options: FormOptions, target: Target) -> Loaded:  # noqa: ARG001
    facts = gguf_facts(checkpoint.folder)
    model = read_model(checkpoint, target)
    note = f"transformers unpacked the file to {target.dtype}: bytes and time are those of plain weights"
    if packed := sum(type(module).__name__ == PACKED_LINEAR for module in model.modules()):
        note = f"transformers keeps {packed} linear layers in the file's blocks ({PACKED_LINEAR})"
    return Loaded(model, notes=(note,) if facts.packed_parameters else (), file_types=facts.types)


LOADER: Loader = Loader(
    name="gguf",
    summary="a GGUF file through transformers, which unpacks most of them",
    options=FormOptions,
    packages=("gguf",),
    load=load,
    reads=lambda stored: stored.get("quant_method") == "gguf",
)
