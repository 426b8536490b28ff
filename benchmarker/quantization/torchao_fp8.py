"""8-bit floating-point weights and activations through torchao, with a scale per weight row and per token.

The GEMM multiplies fp8 (e4m3) matrices, at twice the rate of 16 bits on NVIDIA GPUs from Ada and Hopper on. Like W8A8
in int8, this helps prefill and large batches. Embedding, norms and output layer stay in bfloat16.
"""

from __future__ import annotations

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.quantization import base
from benchmarker.quantization.base import FormOptions, Loaded, Loader, check_nvidia, load_by_torchao, reads_torchao


def check(options: FormOptions, target: Target) -> None:  # noqa: ARG001
    """Raise DeviceError without an NVIDIA GPU with fp8 tensor cores."""
    check_nvidia("fp8", target.device, base.FP8_CAPABILITY, instead="int8-dynamic runs here")


def load(checkpoint: Checkpoint, options: FormOptions, target: Target) -> Loaded:  # noqa: ARG001
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow

    how = Float8DynamicActivationFloat8WeightConfig(granularity=PerRow(), set_inductor_config=False)
    return load_by_torchao(checkpoint, target, how)


LOADER: Loader = Loader(
    name="fp8",
    summary="torchao fp8, weights and activations, on NVIDIA GPUs from Ada and Hopper on",
    options=FormOptions,
    packages=("torchao",),
    load=load,
    reads=reads_torchao("Float8DynamicActivationFloat8WeightConfig"),
    check=check,
    aliases=("float8", "torchao-fp8"),
    dtypes=("bfloat16",),  # torch's GEMM with row scales returns no other type.
    bits=(8,),
)
