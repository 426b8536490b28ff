"""int8 weights and activations through torchao (W8A8), with a scale per token computed at run time.

Weight-only int8 converts weights to 16 bits before the GEMM; W8A8 multiplies integers, at twice the rate of 16 bits on
GPUs with int8 tensor cores. This helps prefill and large batches; at batch 1, quantizing the activations costs more
than it saves. Without compilation, torchao 0.18 formats each activation as text before the GEMM (kernel/intmm.py),
which synchronizes at every layer and prevents CUDA graphs. Embedding, norms and output layer stay in 16 bits.
"""

from __future__ import annotations

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.quantization.base import (
    FormOptions,
    Loaded,
    Loader,
    load_by_torchao,
    reads_torchao,
    with_fused_experts,
)


def load(checkpoint: Checkpoint, options: FormOptions, target: Target) -> Loaded:  # noqa: ARG001
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, PerRow

    how = Int8DynamicActivationInt8WeightConfig(granularity=PerRow(), set_inductor_config=False)
    return load_by_torchao(checkpoint, target, how)


LOADER: Loader = Loader(
    name="int8-dynamic",
    summary="torchao int8, weights and activations (W8A8)",
    options=FormOptions,
    packages=("torchao",),
    load=load,
    prepare=with_fused_experts,
    reads=reads_torchao("Int8DynamicActivationInt8WeightConfig"),
    aliases=("w8a8", "int8da", "torchao-int8-dynamic"),
    bits=(8,),
    quantizes_experts=True,
)
