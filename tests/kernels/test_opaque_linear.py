"""Linears that the opaque operator finds by number."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from benchmarker.hardware.device import CpuDevice
from benchmarker.kernels.opaque_linear import make_opaque, quantized_linear
from benchmarker.quality.judge import give_back


class PackedLinear(nn.Module):
    """Stand-in for a linear of gptqmodel that torch.compile cannot trace."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.out_features = factor, 4
        self.register_buffer("qweight", torch.zeros(4, dtype=torch.int32))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.factor * hidden


PackedLinear.__module__ = "gptqmodel.nn_modules.qlinear.torch"


def test_operator_runs_the_forward_of_each_layers_class() -> None:
    model = nn.Sequential(PackedLinear(2.0), PackedLinear(5.0))
    make_opaque(model)
    assert model(torch.ones(1, 4)).tolist() == [[10.0] * 4]
    result = [quantized_linear(torch.ones(1, 4), layer.opaque_number, 4) for layer in model]
    assert [one.tolist() for one in result] == [[[2.0] * 4], [[5.0] * 4]]


def test_opaque_layers_are_freed_with_their_model() -> None:
    models = [nn.Sequential(PackedLinear(2.0), PackedLinear(5.0))]
    make_opaque(models[0])
    layers = [weakref.ref(layer) for layer in models[0]]
    numbers = [layer.opaque_number for layer in models[0]]
    models.clear()
    give_back(CpuDevice())
    gc.collect()
    assert [layer() for layer in layers] == [None, None]
    with pytest.raises(AssertionError, match="is gone, with its model"):
        quantized_linear(torch.ones(1, 4), numbers[0], 4)
