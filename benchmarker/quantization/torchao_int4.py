"""int4 weights through torchao: groups of a row share a scale and a zero point, activations stay in bfloat16.

Codes are packed in the order of the tensor cores (torchao's `tile_packed_to_4d`), for torch's own kernel on NVIDIA
GPUs. Rows are padded to a multiple of 1024 inputs (2560 become 3072), and the record's bits per weight include the
padding. Embedding, norms and output layer stay in bfloat16.
"""

from __future__ import annotations

from typing import Any, Literal

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.core.errors import SpecError
from benchmarker.quantization.base import (
    FormOptions,
    Loaded,
    Loader,
    check_nvidia,
    load_by_torchao,
    reads_torchao,
    torchao_group,
)

CAPABILITY = (8, 0)  # Lowest compute capability that has torch's int4 kernel.


class Int4Options(FormOptions):
    group_size: Literal[32, 64, 128, 256] = 128
    """Input channels that share a scale and a zero point."""
    scales: Literal["range", "hqq"] = "range"
    """Choice of scales and zero points: from each group's smallest and largest weight, or by HQQ, which minimizes the
    error of the dequantized weights. Kernel and bytes are the same."""


def check(options: Int4Options, target: Target) -> None:  # noqa: ARG001
    """Raise DeviceError without an NVIDIA GPU of capability 8.0, SpecError for a dtype other than bfloat16."""
    check_nvidia("int4", target.device, CAPABILITY, instead="bnb4 and gptq run here too")
    if target.dtype != "bfloat16":
        raise SpecError(f"int4: torchao's kernel computes in bfloat16, not {target.dtype}; use --dtype bfloat16")


def load(checkpoint: Checkpoint, options: Int4Options, target: Target) -> Loaded:
    check_groups(checkpoint, options)
    return load_by_torchao(checkpoint, target, torchao_config(options))


def torchao_config(options: Int4Options) -> Any:
    from torchao.quantization import Int4WeightOnlyConfig

    return Int4WeightOnlyConfig(
        group_size=options.group_size,
        int4_packing_format="tile_packed_to_4d",
        int4_choose_qparams_algorithm="hqq" if options.scales == "hqq" else "tinygemm",
        set_inductor_config=False,
    )


def check_groups(checkpoint: Checkpoint, options: Int4Options) -> None:
    """Raise SpecError if the group size does not divide a layer's inputs: torchao would leave that layer in 16 bits."""
    for key, title in (("hidden_size", "hidden size"), ("intermediate_size", "intermediate size")):
        inputs = checkpoint.config.get(key)
        if isinstance(inputs, int) and inputs % options.group_size:
            raise SpecError(
                f"int4: options.group_size={options.group_size} does not divide the model's {title} of {inputs}; "
                "choose one that does"
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
