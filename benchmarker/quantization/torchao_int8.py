"""int8 weights through torchao: one scale per row or group, activations in 16 bits.

Half of fp16's bytes are read per token. torchao keeps the class `Linear` and replaces the weight's class
(`weight_classes` in the record). Embedding, norms and output layer stay in 16 bits.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.core.errors import SpecError
from benchmarker.quantization.base import (
    FormOptions,
    Loaded,
    Loader,
    load_by_torchao,
    reads_torchao,
    torchao_group,
    with_fused_experts,
)


class Int8Options(FormOptions):
    group_size: Annotated[int, Field(gt=0)] | None = None
    """Input channels that share a scale; None for one scale per output channel (a whole row)."""


def load(checkpoint: Checkpoint, options: Int8Options, target: Target) -> Loaded:
    from torchao.quantization import Int8WeightOnlyConfig, PerGroup, PerRow

    hidden = checkpoint.config.get("hidden_size")
    if options.group_size and isinstance(hidden, int) and hidden % options.group_size:
        raise SpecError(
            f"int8: options.group_size={options.group_size} does not divide the model's hidden size of {hidden}; "
            "choose one that does, or leave it out for one scale per row"
        )
    granularity = PerRow() if options.group_size is None else PerGroup(options.group_size)
    how = Int8WeightOnlyConfig(granularity=granularity, set_inductor_config=False)
    return load_by_torchao(checkpoint, target, how)


LOADER: Loader = Loader(
    name="int8",
    summary="torchao int8, weight only",
    options=Int8Options,
    packages=("torchao",),
    load=load,
    prepare=with_fused_experts,
    reads=reads_torchao("Int8WeightOnlyConfig"),
    stored_options=torchao_group,
    aliases=("torchao-int8", "int8wo", "int8-weight-only"),
    splits=("layers",),
    bits=(8,),
    quantizes_experts=True,
)
