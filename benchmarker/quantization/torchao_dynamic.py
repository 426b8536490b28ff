"""int8 or FP8 weights and activations through torchao, with a scale per weight row and one per token.

Scales of tokens are computed at run time. Weight-only int8 converts weights to 16 bits before the GEMM; here the GEMM
multiplies 8-bit matrices, at twice the rate of 16 bits on GPUs with int8 tensor cores, or on NVIDIA GPUs from Ada and
Hopper on in fp8 (e4m3). This helps prefill and large batches; at batch 1, quantizing the activations costs more than it
saves. Without compilation, torchao 0.18 formats each int8 activation as text before the GEMM (kernel/intmm.py), which
synchronizes at every layer and prevents CUDA graphs. Embedding, norms and output layer stay in 16 bits.
"""

from __future__ import annotations

from typing import Any

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.quantization.base import (
    FP8_CAPABILITY,
    FormOptions,
    Loaded,
    Loader,
    check_nvidia,
    load_by_torchao,
    reads_torchao,
    with_fused_experts,
)


def _loader(name: str, config_class: str, **fields: Any) -> Loader:
    """Return a loader that quantizes by a config class of torchao. `fields`: further fields of Loader."""

    def load(checkpoint: Checkpoint, options: FormOptions, target: Target) -> Loaded:  # noqa: ARG001
        from torchao import quantization

        how = getattr(quantization, config_class)(granularity=quantization.PerRow(), set_inductor_config=False)
        return load_by_torchao(checkpoint, target, how)

    return Loader(
        name=name,
        options=FormOptions,
        packages=("torchao",),
        load=load,
        reads=reads_torchao(config_class),
        bits=(8,),
        **fields,
    )


def check_fp8(options: FormOptions, target: Target) -> None:  # noqa: ARG001
    check_nvidia("fp8", target.device, FP8_CAPABILITY, instead="int8-dynamic runs here")


INT8: Loader = _loader(
    "int8-dynamic",
    "Int8DynamicActivationInt8WeightConfig",
    summary="torchao int8, weights and activations (W8A8)",
    prepare=with_fused_experts,
    aliases=("w8a8", "int8da", "torchao-int8-dynamic"),
    quantizes_experts=True,
)
FP8: Loader = _loader(
    "fp8",
    "Float8DynamicActivationFloat8WeightConfig",
    summary="torchao fp8, weights and activations, on NVIDIA GPUs from Ada and Hopper on",
    check=check_fp8,
    aliases=("float8", "torchao-fp8"),
    dtypes=("bfloat16",),  # torch's GEMM with row scales returns no other type.
)
