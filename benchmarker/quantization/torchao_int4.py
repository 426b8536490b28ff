"""int4 weights through torchao: groups of a row share a scale and a zero point, activations stay in bfloat16.

Codes are packed in the order of the tensor cores (torchao's `tile_packed_to_4d`), for torch's own kernel on NVIDIA
GPUs. Rows are padded to a multiple of 1024 inputs (2560 become 3072), and the record's bits per weight include the
padding. Embedding, norms and output layer stay in bfloat16.
"""

from __future__ import annotations

from typing import Any, Literal

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.quantization.base import (
    FormOptions,
    Loaded,
    Loader,
    check_nvidia,
    load_by_torchao,
    reads_torchao,
    torchao_group,
)
from benchmarker.quantization.torchao_int8 import check_groups

CAPABILITY = (8, 0)  # Lowest compute capability that has torch's int4 kernel.


class Int4Options(FormOptions):
    group_size: Literal[32, 64, 128, 256] = 128
    """Input channels that share a scale and a zero point."""
    scales: Literal["range", "hqq"] = "range"
    """Choice of scales and zero points: from each group's smallest and largest weight, or by HQQ, which minimizes the
    error of the dequantized weights. Kernel and bytes are the same."""


def check(options: Int4Options, target: Target) -> None:  # noqa: ARG001
    check_nvidia("int4", target.device, CAPABILITY, instead="bnb4 and gptq run here too")


def load(checkpoint: Checkpoint, options: Int4Options, target: Target) -> Loaded:
    check_groups("int4", checkpoint, options.group_size)
    return load_by_torchao(checkpoint, target, torchao_config(options))


def torchao_config(options: Int4Options) -> Any:
    from torchao.quantization import Int4WeightOnlyConfig

    return Int4WeightOnlyConfig(
        group_size=options.group_size,
        int4_packing_format="tile_packed_to_4d",
        int4_choose_qparams_algorithm="hqq" if options.scales == "hqq" else "tinygemm",
        set_inductor_config=False,
    )


LOADER: Loader = Loader(
    name="int4",
    summary="torchao int4, weight only, on NVIDIA GPUs",
    options=Int4Options,
    packages=("torchao",),
    load=load,
    reads=reads_torchao("Int4WeightOnlyConfig"),
    stored_options=torchao_group,
    check=check,
    aliases=("torchao-int4", "int4wo", "int4-weight-only"),
    dtypes=("bfloat16",),
    bits=(4,),
)
