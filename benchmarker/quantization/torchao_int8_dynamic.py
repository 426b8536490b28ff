"""Weights and activations in int8 through torchao (W8A8): activations get a scale for each token while the model runs.

Where weight-only int8 converts weights to 16 bit before it multiplies, here the product itself is of integers, at twice
the rate of 16 bit on GPUs that have it. That wins for prompts and large batches; at batch 1 quantizing the activations
costs more than it saves. Uncompiled, torchao 0.18 formats each activation as text before its product, to look for a
word in it (kernel/intmm.py): a step waits for the host at every layer and cannot be captured. The embedding, the norms
and the output layer stay in 16 bit.
"""

from __future__ import annotations

from benchmarker.checkpoints.base import Checkpoint, Progress, Target
from benchmarker.checkpoints.read_model import read_model
from benchmarker.quantization.base import FormOptions, Loaded, Loader, head_notes, require


def check(options: FormOptions, target: Target) -> None:  # noqa: ARG001
    """Any device and type will do.

    Raises:
        MissingLibraryError: torchao is not installed.
    """
    require("int8-dynamic", "torchao")


def load(checkpoint: Checkpoint, options: FormOptions, target: Target, progress: Progress) -> Loaded:  # noqa: ARG001
    """Read the weights and quantize each as it arrives on the device."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, PerRow
    from transformers import TorchAoConfig

    # torchao would change inductor's flags for the whole process; every variant is compiled with the same ones.
    how = Int8DynamicActivationInt8WeightConfig(granularity=PerRow(), set_inductor_config=False)
    model = read_model(checkpoint, target, quantization=TorchAoConfig(how))
    return Loaded(model, notes=head_notes(options, model, target))


LOADER: Loader = Loader(
    name="int8-dynamic",
    summary="torchao int8, weights and activations (W8A8)",
    options=FormOptions,
    packages=("torchao",),
    load=load,
    check=check,
    aliases=("w8a8", "int8da", "torchao-int8-dynamic"),
    bits=(8,),
    kernels={"aten::_int_mm": "quantized matmul"},
)
