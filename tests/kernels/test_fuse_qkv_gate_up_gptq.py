"""Fusion of GPTQ linears with one input: the same results without extra memory, with gptqmodel's linears on the CPU.

Products of one row run the CUDA source on the CPU; products of several rows dequantize first.
"""

from collections.abc import Callable
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarker.kernels import gemv_gptq, gemv_gptq_triton, gemv_tensor_core, optimize, quantized_gemm, restore
from benchmarker.kernels.dequantize_matrix import unpack_matrix
from benchmarker.kernels.fuse_qkv_gate_up import PACKED, fuse_linears, join_gptq
from benchmarker.kernels.fused_decode_layer import product_of
from benchmarker.kernels.gemv_fusion import NO_FUSION, GemvFusion
from benchmarker.kernels.gemv_gptq import Matrix, on_tensor_cores
from benchmarker.kernels.linear_dispatch import replace_linears
from benchmarker.kernels.permute_rows import swiglu_by_lane
from tests.kernels.test_kernels import weights_size
from tests.kernels.test_quantized_gemm import as_on_hopper, logits_of
from tests.loading import load
from tests.on_processor import run_on_processor

__all__ = ["as_on_hopper"]
Products = list[tuple[str, int]]
ATTENTION, MLP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
OUTPUTS = [128 + 2 * 64, 128, 2 * 256, 128]
"""Outputs of the four products of a layer."""


@pytest.fixture(scope="module")
def loaded(shape_folder: Path) -> Any:
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchLinear, "optimize", lambda linear: None)
        return load(shape_folder, "gptq", dtype="float16", dummy=True, kernel="torch").model


@pytest.fixture
def model(loaded: Any, without_compiling: None) -> Any:
    return deepcopy(loaded)


def linears_of(model: Any) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "qweight")]


def first_groups(model: Any) -> tuple[list[Any], list[Any]]:
    """Return query, key and value, and gate and up, of the first layer."""
    layer = model.model.layers[0]
    return [getattr(layer.self_attn, name) for name in ATTENTION], [getattr(layer.mlp, name) for name in MLP]


@pytest.mark.slow
@pytest.mark.usefixtures("as_on_hopper")
def test_joined_linears_are_columns_of_one_matrix_until_restore(model: Any) -> None:
    ids = torch.arange(5)[None] + 10
    expected, size = logits_of(model, ids), weights_size(model)
    before = [{name: getattr(linear, name).clone() for name in PACKED} for linear in linears_of(model)]
    for _ in range(2):
        kernels = {replacement.kernel: len(replacement.modules) for replacement in optimize(model)}
        assert kernels == {"gemv_dense": 1, "gemv_gptq": 14, "packed_matmul": 14, "fuse_qkv_gate_up": 10}
    assert weights_size(model) == size
    for group in first_groups(model):
        whole = group[0].fused_slice.fused.linear
        for name in PACKED:
            columns: list[torch.Tensor] = [getattr(linear, name) for linear in group]
            storages = {part.untyped_storage().data_ptr() for part in (*columns, getattr(whole, name))}
            assert len(storages) == 1
            assert getattr(whole, name).is_contiguous()
            assert torch.equal(torch.cat(columns, 1), getattr(whole, name))
            assert not any(part.is_contiguous() for part in columns if len(part) > 1)
        # gptqmodel's forward gives the same result for columns, although it is slower on a GPU.
        hidden = torch.randn(2, whole.in_features, dtype=torch.float16)
        for linear in group:
            with torch.no_grad():
                assert torch.equal(linear.own_class.original_forward(linear, hidden), linear(hidden))
            assert not linear.qweight.is_contiguous()
    assert torch.equal(logits_of(model, ids), expected)
    restore(model)
    assert weights_size(model) == size
    for linear, tensors in zip(linears_of(model), before, strict=True):
        assert all(getattr(linear, name).is_contiguous() for name in PACKED)
        assert all(torch.equal(getattr(linear, name), tensor) for name, tensor in tensors.items())
    assert torch.equal(logits_of(model, ids), expected)
    assert {len(replacement.modules) for replacement in optimize(model)} == {1, 10, 14}
    assert torch.equal(logits_of(model, ids), expected)


@pytest.mark.slow
@pytest.mark.parametrize("zeros", [8, 7])
@pytest.mark.parametrize(
    "ids",
    [
        torch.arange(3)[:, None] + 10,
        torch.arange(5)[None] + 10,
        torch.arange(40)[None] + 10,
        torch.arange(75)[None].repeat(2, 1) + 10,
        torch.arange(600)[None] % 90 + 10,
        torch.arange(600)[:, None] % 90 + 10,
    ],
)
def test_several_rows_use_four_products_per_layer(
    model: Any, ids: torch.Tensor, zeros: int, as_on_hopper: Products, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[int] = []

    def unpack(words: torch.Tensor, *others: Any) -> torch.Tensor:
        assert words.is_contiguous()
        unpacked.append(words.shape[1])
        return unpack_matrix(words, *others)

    def swiglu(gate_up: torch.Tensor, pack_factor: int) -> torch.Tensor:
        swiglus_by_lane.append((tuple(gate_up.shape), pack_factor))
        return swiglu_by_lane(gate_up, pack_factor)

    swiglus_by_lane: list[tuple[tuple[int, ...], int]] = []
    monkeypatch.setattr("benchmarker.kernels.fuse_swiglu.swiglu_by_lane", swiglu)
    monkeypatch.setattr("benchmarker.kernels.linear_dispatch.unpack_matrix", unpack)
    monkeypatch.setattr(quantized_gemm, "MAX_ROWS", 512)
    for linear in linears_of(model):
        linear.qzeros.fill_(zeros * 0x11111111 - (1 << 32 if zeros > 7 else 0))
    expected = logits_of(model, ids)
    optimize(model)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    result = logits_of(model, ids)
    assert float((result - expected).norm() / expected.norm()) < 5e-3
    assert swiglus_by_lane == ([((ids.numel(), 2 * 256), 8)] * 2 if ids.numel() in (40, 150) else [])
    products = unpacked if ids.numel() == 600 else [outputs for _, outputs in as_on_hopper]
    assert products == [*OUTPUTS, *OUTPUTS]
    forms = {"int4 by group" if zeros == 8 else "int4 by group, zeros"}
    assert {form for form, _ in as_on_hopper} == (set() if ids.numel() == 600 else forms)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 5), (1, 600), (600, 1)])
@pytest.mark.usefixtures("as_on_hopper")
def test_joined_linears_compile_to_one_graph_for_all_layers(
    model: Any, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on_processor(gemv_tensor_core, monkeypatch)
    monkeypatch.setattr(gemv_gptq, "supports_tensor_cores", lambda *_: True)
    monkeypatch.setattr(quantized_gemm, "MAX_ROWS", 512)
    operators: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        names = [str(node.target).split(".")[1] for node in graph.graph.nodes if "benchmarker." in str(node.target)]
        operators.append(names)
        return graph.forward

    def attention_and_mlp(layer: Any, hidden: torch.Tensor) -> list[torch.Tensor]:
        attention, mlp = layer.self_attn, layer.mlp
        return [
            *(getattr(attention, name)(hidden) for name in ATTENTION),
            *(getattr(mlp, name)(hidden) for name in MLP),
        ]

    hidden = torch.randn(*shape, 128, generator=torch.Generator().manual_seed(0)).half()
    optimize(model)
    torch.compiler.reset()
    compiled = torch.compile(attention_and_mlp, backend=backend, fullgraph=True, dynamic=False)
    with torch.no_grad():
        for layer in model.model.layers:
            for result, expected in zip(compiled(layer, hidden), attention_and_mlp(layer, hidden), strict=True):
                assert result.shape == expected.shape
                assert float((result - expected).norm() / expected.norm()) < 2e-3
    kinds = {1: "gemv_gptq", 600: "unpack_matrix"}
    assert operators == [[kinds.get(shape[0] * shape[1], "packed_matmul")] * 2]


@pytest.mark.slow
@pytest.mark.usefixtures("as_on_hopper")
def test_gemv_of_joined_words_equals_separate_words(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run_on_processor(gemv_tensor_core, monkeypatch)
    launched: list[list[int]] = []

    def launch(hidden: torch.Tensor, matrices: list[Matrix], fusion: GemvFusion) -> torch.Tensor:
        launched.append([matrix.words.shape[1] for matrix in matrices])
        return on_tensor_cores(hidden, matrices, fusion)

    monkeypatch.setattr(gemv_gptq, "supports_tensor_cores", lambda *_: True)
    monkeypatch.setattr(gemv_gptq, "on_tensor_cores", launch)
    torch.manual_seed(0)
    hidden, gain = torch.randn(128).half(), (1 + torch.randn(128) / 4).half()

    def multiply() -> list[torch.Tensor]:
        joint, gate_up = (product_of(group) for group in first_groups(model))
        assert joint is not None
        assert gate_up is not None
        return [
            joint(hidden, fusion=GemvFusion(gain, 1e-6)),
            gate_up(hidden, fusion=GemvFusion(gain, 1e-6, swiglu=True)),
        ]

    replace_linears(model)
    separate = multiply()
    with torch.no_grad():
        expected = torch.cat([linear(hidden[None])[0] for linear in first_groups(model)[0]]).float()
    assert len(fuse_linears(model)) == 10
    assert all(map(torch.equal, multiply(), separate))
    assert launched == [[128, 64, 64], [256, 256], [256], [256, 256]]
    joint = product_of(first_groups(model)[0])
    assert joint is not None
    assert float((joint(hidden, fusion=NO_FUSION).float() - expected).norm() / expected.norm()) < 2e-3
    # A subset, or another order, is not one matrix.
    query, key, value = first_groups(model)[0]
    for group in ([query], [query, key], [value, query, key]):
        assert product_of(group) is None
    # Compiled code multiplies one row by the whole matrix, too.
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    launched.clear()
    with torch.no_grad():
        result = torch.cat([linear(hidden[None, None])[0, 0] for linear in (query, key, value)])
    assert launched == [[256]]
    assert torch.equal(result, joint(hidden, fusion=NO_FUSION))


CHANGES: dict[str, Callable[[Any], object]] = {
    "zeros of its own": lambda query: setattr(query, "packed_form", "int4 by group, zeros"),
    "a bias": lambda query: setattr(query, "bias", torch.zeros(128)),
    "scales of another type": lambda query: setattr(query, "scales", query.scales.float()),
    "other groups": lambda query: setattr(query, "scales", query.scales.repeat(2, 1)),
    "columns that begin off their place": lambda query: setattr(query, "out_features", 120),
}


@pytest.mark.slow
@pytest.mark.usefixtures("as_on_hopper")
def test_linears_with_different_properties_are_not_joined(model: Any) -> None:
    replace_linears(model)
    group = first_groups(model)[0]
    for name, change in CHANGES.items():
        query = copy(group[0])
        query._buffers = dict(query._buffers)
        change(query)
        assert join_gptq([query, *group[1:]]) is None, name
    for linear in group:
        linear.packed_form = None
    assert [linear for linear in fuse_linears(model) if linear in group] == []
    assert hasattr(first_groups(model)[1][0], "fused_slice")
    assert all(linear.qweight.is_contiguous() for linear in group)


@pytest.mark.slow
@pytest.mark.usefixtures("as_on_hopper")
def test_biases_are_joined(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for linear in first_groups(model)[0]:
        linear.bias = torch.randn(linear.out_features).half()
    ids = torch.arange(5)[None] + 10
    expected = logits_of(model, ids)
    optimize(model)
    assert torch.equal(logits_of(model, ids), expected)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    result = logits_of(model, ids)
    assert float((result - expected).norm() / expected.norm()) < 5e-3


def test_triton_multiplies_columns_without_tensor_core_support(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        gemv_gptq_triton, "launch", lambda hidden, matrices, fusion: seen.extend(one.pitch for one in matrices)
    )
    words, scales = torch.zeros(16, 64, dtype=torch.int32), torch.zeros(1, 64)
    halves = [Matrix(*parts) for parts in zip(words.chunk(2, 1), (None, None), scales.chunk(2, 1), strict=True)]
    gemv_gptq.launch(torch.zeros(128), halves, GemvFusion(swiglu=True))
    assert seen == [64, 64]
