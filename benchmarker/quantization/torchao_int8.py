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

    check_groups("int8", checkpoint, options.group_size)
    granularity = PerRow() if options.group_size is None else PerGroup(options.group_size)
    how = Int8WeightOnlyConfig(granularity=granularity, set_inductor_config=False)
    return load_by_torchao(checkpoint, target, how)


def check_groups(name: str, checkpoint: Checkpoint, group_size: int | None) -> None:
    """Raise SpecError if the group size does not divide a layer's inputs: torchao would leave that layer in 16 bits."""
    for key, title in (("hidden_size", "hidden size"), ("intermediate_size", "intermediate size")):
        inputs = checkpoint.config.get(key)
        if group_size and isinstance(inputs, int) and inputs % group_size:
            text = f"{name}: options.group_size={group_size} does not divide the model's {title} of {inputs}"
            raise SpecError(f"{text}; choose one that does")


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
