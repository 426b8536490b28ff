"""Quantized GEMM in models: supported linears and rows, candidates, and outputs.

The kernels need a GPU or Triton's interpreter (`test_kernels_interpreter.py`); the candidate that dequantizes first
replaces them here.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.compile_fx as inductor
from torch._dynamo.backends.debugging import aot_eager
from transformers import PreTrainedModel

from benchmarker.engines.decoders.native import native_decoder, native_kernels
from benchmarker.hardware.device import CpuDevice
from benchmarker.kernels import gemv_gptq, gemv_tensor_core, optimize, prefill_gemm, quantized_gemm, restore
from benchmarker.kernels.dequantize_matrix import unpack_matrix
from benchmarker.kernels.dequantize_words import CODEBOOKS
from benchmarker.kernels.fused_decode_layer import product_of
from benchmarker.kernels.gemm_autotune import Candidate
from benchmarker.kernels.linear_dispatch import replace_linears
from benchmarker.kernels.opaque_linear import make_opaque
from benchmarker.kernels.packed_weights import Order, Packed, in_natural_order, order_of, pack_factor, reorder
from benchmarker.kernels.permute_rows import swiglu_by_lane
from benchmarker.kernels.quantized_gemm import candidates_for, unpacked_candidate
from benchmarker.kernels.quantized_gemm_triton import tile_configs_for
from benchmarker.kernels.rewritten_module import ADDED, SwigluKernels
from benchmarker.kernels.scaled_linear import ScaledLinear, quantized_rows
from benchmarker.quantization.load import quantized_linears
from tests.benchmarks.gemm_times import weights_of
from tests.engines.test_engines_graph import Rerun
from tests.kernels.test_kernels import counted, unpacked, weights_size
from tests.loading import load
from tests.quantization.test_stored_formats import compressed

BATCH = 3


@pytest.fixture
def as_on_hopper(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Support linears as on Hopper, and dequantize first. Return form and outputs of each product."""
    products: list[tuple[str, int]] = []

    def best_candidate(hidden: torch.Tensor, packed: Packed, *_: Any) -> Candidate:
        products.append((packed.form, packed.outputs))
        return unpacked_candidate

    for module in ("gemv_tensor_core", "prefill_gemm"):
        monkeypatch.setattr(f"benchmarker.kernels.{module}.why_not", lambda *_: None)
    for module in ("gemv_dense", "quantized_gemm"):
        monkeypatch.setattr(f"benchmarker.kernels.{module}.supports_pdl", lambda device: True)
    # The GEMV with SwiGLU needs a GPU.
    monkeypatch.setattr("benchmarker.kernels.fuse_swiglu._has_gemv", lambda mlp: False)
    monkeypatch.setattr(
        gemv_gptq,
        "why_not",
        lambda linear: (
            gemv_gptq.layout_reason(linear)
            if type(linear).__name__ in ("TorchLinear", "Int4Linear")
            else "another class"
        ),
    )
    monkeypatch.setattr(quantized_gemm, "best_candidate", best_candidate)
    return products


def logits_of(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    return logits.float()


@pytest.mark.slow
@pytest.mark.parametrize(
    "ids", [torch.arange(3)[:, None] + 10, torch.arange(5)[None, :] + 10, torch.arange(150)[None, :] + 10]
)
@pytest.mark.parametrize(("quant", "form"), [("int8", "int8 by row"), ("bnb4", "nf4")])
def test_compiled_model_multiplies_packed_weights_for_several_rows(
    model_folder,
    quant: str,
    form: str,
    ids: torch.Tensor,
    as_on_hopper: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swiglus_by_lane: list[tuple[int, ...]] = []

    def swiglu(gate_up: torch.Tensor, pack_factor: int) -> torch.Tensor:
        swiglus_by_lane.append(tuple(gate_up.shape))
        return swiglu_by_lane(gate_up, pack_factor)

    monkeypatch.setattr("benchmarker.kernels.fuse_swiglu.swiglu_by_lane", swiglu)
    model = unpacked(load(model_folder, quant, dtype="bfloat16").model)
    expected = logits_of(model, ids)
    replacements = optimize(model)
    packed = next(len(one.modules) for one in replacements if one.kernel == "packed_matmul")
    assert packed == 14
    assert "packed_matmul, benchmarker's own kernel, multiplies packed weights by several rows: 14 of 15 linears" in [
        use.words() for use in native_kernels(model, replacements)
    ]
    # Code that is not compiled runs the library's forward.
    assert torch.equal(logits_of(model, ids), expected)
    assert as_on_hopper == []
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    result = logits_of(model, ids)
    assert float((result - expected).norm() / expected.norm()) < 0.03
    # Query, key and value are one product; gate and up are another.
    layer = [(form, outputs) for outputs in (128 + 2 * 64, 128, 2 * 256, 128)]
    assert as_on_hopper == [*layer, *layer]
    # In a prefill, SwiGLU returns the rows in the order of the down projection's kernel.
    assert swiglus_by_lane == ([(150, 2 * 256)] * 2 if ids.numel() == 150 else [])
    restore(model)
    assert torch.equal(logits_of(model, ids), expected)
    assert not any(hasattr(module, name) for module in model.modules() for name in ADDED)


@pytest.fixture
def gemv_outputs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the GEMV by torch operators; return the number of outputs of each call."""
    products: list[int] = []

    def gemv(
        hidden: torch.Tensor, matrix: torch.Tensor, scales: torch.Tensor | None, quantized: bool = False
    ) -> torch.Tensor:
        products.append(len(matrix))
        dtype = hidden.dtype
        if quantized:
            codes, scale = quantized_rows(hidden.view(1, -1), matrix.dtype)
            hidden = (codes.float() * scale).flatten()
        product = matrix.float() @ hidden.float()
        return (product if scales is None else product * scales.flatten()).to(dtype)

    monkeypatch.setattr("benchmarker.kernels.gemv_dense.gemv_dense", gemv)
    return products


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("weights", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("rows", [1, 3])
def test_w8a8_linear_uses_the_16_bit_kernels_for_few_rows(
    rows: int, weights: torch.dtype, dtype: torch.dtype, as_on_hopper: list[Any], gemv_outputs: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    torch.manual_seed(0)
    codes = (torch.randn(64, 256) * 40).clamp(-127, 127).round().to(weights)
    # With these scales, sums of codes exceed float16's range, and the products do not.
    linear = ScaledLinear(codes, torch.rand(64) * 1e-3 + 3, torch.randn(64))
    hidden = (torch.randn(1, rows, 256) * torch.tensor([0.01, 1, 3])[:rows, None]).to(dtype)
    expected = linear(hidden)
    assert counted(replace_linears(torch.nn.ModuleList([linear]))) == {"gemv_scaled": 1}
    product: Any = product_of([linear], biased=True)
    assert product.keywords["quantized"]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    result = linear(hidden)
    assert result.dtype == dtype
    assert float((result - expected).float().norm() / expected.float().norm()) < 2e-3 + torch.finfo(dtype).eps
    is_packed = rows > 1 and weights == torch.int8
    assert (as_on_hopper, gemv_outputs) == ([("int8 by row", 64)] if is_packed else [], [64] if rows == 1 else [])


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["W8A8", "FP8_DYNAMIC"])
@pytest.mark.parametrize("count", [1, 5])
def test_fused_w8a8_layers_keep_their_predictions(
    model_folder, tmp_path: Path, scheme: str, count: int, as_on_hopper: list[tuple[str, int]], gemv_outputs: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    model = load(compressed(model_folder, tmp_path / "packed", scheme), "compressed-tensors", dtype="float16").model
    ids = torch.arange(count)[None, :] + 10
    expected, size = logits_of(model, ids), weights_size(model)
    replacements = optimize(model)
    assert {one.kernel: len(one.modules) for one in replacements} == {
        "gemv_dense": 1, "gemv_scaled": 14, "fuse_qkv_gate_up": 10,
        **({"packed_matmul": 14} if scheme == "W8A8" else {}),
    }  # fmt: skip
    assert weights_size(model) == size
    assert len(quantized_linears(model)) == 14
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    result = logits_of(model, ids)
    assert float((result - expected).norm() / expected.norm()) < 0.03
    # Query, key and value are one product; gate and up are another.
    products = [128 + 2 * 64, 128, 2 * 256, 128] * 2
    assert [outputs for outputs in gemv_outputs if outputs != model.config.vocab_size] == (
        products if count == 1 else []
    )
    assert [outputs for _, outputs in as_on_hopper] == (products if count > 1 and scheme == "W8A8" else [])
    restore(model)
    assert torch.equal(logits_of(model, ids), expected)


@pytest.mark.slow
def test_opaque_awq_linears_are_repacked(
    shape_folder, as_on_hopper: list[tuple[str, int]], without_compiling: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(shape_folder, "awq", dtype="bfloat16", dummy=True, kernel="torch").model
    ids = torch.arange(3)[None, :] + 10
    expected = logits_of(model, ids)
    make_opaque(model)
    with monkeypatch.context() as on_gpu:
        on_gpu.setattr(torch.Tensor, "is_cuda", True)
        replaced = counted(replace_linears(model))
    assert replaced == {"gemv_dense": 1, "gemv_gptq": 14}
    optimize(model)
    assert float((logits_of(model, ids) - expected).norm() / expected.norm()) < 0.03
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert float((logits_of(model, ids) - expected).norm() / expected.norm()) < 0.03
    assert {form for form, _ in as_on_hopper} == {"int4 by group, zeros"}


@pytest.mark.slow
@pytest.mark.parametrize(("quant", "form"), [("int8", "int8 by row"), ("bnb4", "nf4")])
def test_long_prefill_dequantizes_each_fused_matrix_once(
    model_folder, quant: str, form: str, as_on_hopper: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrices: list[tuple[str, int]] = []

    def unpacked_matrix(*tensors_and_form: Any) -> torch.Tensor:
        matrices.append(tensors_and_form[3:5])
        return unpack_matrix(*tensors_and_form)

    monkeypatch.setattr("benchmarker.kernels.linear_dispatch.unpack_matrix", unpacked_matrix)
    monkeypatch.setattr(quantized_gemm, "MAX_ROWS", 128)
    ids = torch.arange(150)[None, :] + 10
    model = unpacked(load(model_folder, quant, dtype="bfloat16").model)
    expected = logits_of(model, ids)
    optimize(model)
    assert torch.equal(logits_of(model, ids), expected)
    assert matrices == []
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    result = logits_of(model, ids)
    assert float((result - expected).norm() / expected.norm()) < 0.03
    # Query, key and value are one matrix; gate and up are another.
    layer = [(form, outputs) for outputs in (128 + 2 * 64, 128, 2 * 256, 128)]
    assert matrices == [*layer, *layer]
    assert as_on_hopper == []


@pytest.mark.by_hand
def test_gptq_with_and_without_zero_points_is_supported(shape_folder, as_on_hopper: list[tuple[str, int]]) -> None:
    model = load(shape_folder, "gptq", dtype="float16", dummy=True, kernel="torch").model
    linears: list[Any] = [module for module in model.modules() if hasattr(module, "qweight")]
    assert {quantized_gemm.packed_form(linear) for linear in linears} == {"int4 by group"}
    linears[0].qzeros[0, 0] += 1
    assert quantized_gemm.packed_form(linears[0]) == "int4 by group, zeros"
    linears[0].max_packed_rows = quantized_gemm.max_packed_rows(linears[0], "int4 by group, zeros")
    hidden = torch.randn(BATCH, 1, linears[0].in_features, dtype=torch.float16)
    result = quantized_gemm.packed_product(hidden, linears[0], "int4 by group, zeros")
    expected = hidden[:, 0].float() @ linears[0].dequantize_weight().float()
    assert float((result.float() - expected).norm() / expected.norm()) < 2e-3
    assert as_on_hopper == [("int4 by group, zeros", linears[0].out_features)]


@pytest.mark.slow
def test_unsupported_linear_has_no_packed_form(
    model_folder, as_on_hopper: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = unpacked(load(model_folder, "bnb4", dtype="bfloat16").model)
    linear: Any = model.model.layers[0].mlp.gate_proj
    assert quantized_gemm.packed_form(linear) == "nf4"
    assert torch.equal(linear.weight.quant_state.code.float(), torch.tensor(CODEBOOKS["nf4"]))
    for target, name, value in (
        (linear.weight.quant_state, "code", linear.weight.quant_state.code + 1),
        (linear.weight.quant_state, "blocksize", 32),
        (linear, "in_features", 64),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(target, name, value)
            assert quantized_gemm.packed_form(linear) is None, name
    assert quantized_gemm.packed_form(model.lm_head) is None
    monkeypatch.setattr(quantized_gemm, "supports_pdl", lambda device: False)
    assert quantized_gemm.packed_form(linear) is None


def test_quantized_gemm_supports_2_to_128_rows_of_16_bits() -> None:
    linear = SimpleNamespace(max_packed_rows=128)
    taken = {
        rows: quantized_gemm.is_supported(torch.empty(rows, 1, 8, dtype=torch.float16), linear)
        for rows in (1, 2, 128, 129)
    }
    assert taken == {1: False, 2: True, 128: True, 129: False}
    assert not quantized_gemm.is_supported(torch.empty(2, 1, 8), linear)


def test_k_is_split_only_if_output_tiles_do_not_fill_the_gpu() -> None:
    def packed(outputs: int, inputs: int) -> Packed:
        words = torch.empty(outputs, inputs // 4, dtype=torch.int32, device="meta")
        return Packed("int8 by row", words, torch.empty(outputs, device="meta"))

    few, many = (tile_configs_for(packed(outputs, 2560), 8, 132) for outputs in (2560, 19456))
    assert max(tile.split_k for tile in few) > 1
    assert min(tile.split_k for tile in many) == 1
    for tiles in (few, many):
        assert len(tiles) == len(set(tiles)) <= 8
        for tile in tiles:
            assert 2560 // 4 % tile.words == 0
            # Every program has at least one step.
            steps = 2560 // 4 // tile.words
            assert (tile.split_k - 1) * -(-steps // tile.split_k) < steps


@pytest.mark.parametrize(
    ("form", "rows", "order", "shape"),
    [
        ("int8 by row", 32, "by word position", (32, 4, 32)),
        ("int8 by row", 33, "by lane", (33, 2, 4, 16)),
        ("int4 by group", 32, "natural", (32, 128)),
        ("int4 by group", 129, "by lane", (129, 2, 4, 16)),
        ("nf4", 2, "natural", (2, 128)),
    ],
)
def test_row_order_depends_on_form_and_number_of_rows(
    form: str, rows: int, order: Order, shape: tuple[int, ...]
) -> None:
    assert order_of(form, rows, has_prefill_gemm=True) == order
    assert order_of(form, rows, has_prefill_gemm=False) != "by lane"
    hidden = torch.arange(rows * 128.0).view(rows, 128)
    permuted = reorder(hidden, pack_factor(form), order)
    assert permuted.shape == shape
    if order == "by lane":
        assert torch.equal(permuted.flatten(1).sort().values, hidden)
    else:
        assert torch.equal(in_natural_order(permuted), hidden)


@pytest.mark.parametrize(
    ("rows", "is_on_card", "is_hopper"),
    [
        (8, True, True),
        (8, False, False),
        (9, True, True),
        (32, True, True),
        (32, True, False),
        # Supported by `prefill_gemm` alone.
        (32, False, True),
        (96, True, False),
    ],
)
def test_candidates_for_4_bit_weights_depend_on_device_and_rows(
    rows: int, is_on_card: bool, is_hopper: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemv_tensor_core, "why_not", lambda *_: None if is_on_card else "another card")
    monkeypatch.setattr(prefill_gemm, "why_not", lambda *_: None if is_hopper else "not Hopper")
    monkeypatch.setattr(gemv_tensor_core, "max_shared_bytes", lambda device: gemv_tensor_core.HOPPERS_SHARED_BYTES)
    words, scales = torch.zeros(64, 640, dtype=torch.int16), torch.ones(64, 40)
    names = [candidate.name for candidate in candidates_for(torch.zeros(rows, 2560), Packed("nf4", words, scales))]
    assert len(set(names)) == len(names)
    by_table = is_on_card and rows <= 64
    assert any(name.startswith("table, ") for name in names) == by_table
    assert any(" words, " in name for name in names) == (not by_table or not is_hopper)
    assert any(name.startswith("warp groups, ") for name in names) == (is_hopper and rows > 8)
    assert names[-1] == "unpacked to 16 bit, then cuBLAS"


@pytest.mark.parametrize(
    ("form", "lengths"),
    [("int8 by row", (160, 192, 512, 576, 640, 2176)), ("int4 by group", (64, 96, 128, 160, 512, 2176))],
)
def test_one_compilation_serves_prompts_of_any_length(
    form: str, lengths: tuple[int, ...], as_on_hopper: list[tuple[str, int]]
) -> None:
    # From the second length on, the number of rows is symbolic, also in the choice of the row order.
    linear, down = (SimpleNamespace(out_features=256, max_packed_rows=16384, weight=None) for _ in range(2))
    packed, matrix = weights_of(form, 128, 256, "cpu")
    torch.compiler.reset()
    frames: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        frames.append(len(inputs))
        return aot_eager(graph, inputs)

    def product(hidden: torch.Tensor) -> torch.Tensor:
        assert quantized_gemm.uses_permute_kernel(hidden.shape[1], linear, form)
        gate_up = quantized_gemm.packed_product(hidden, linear, form)
        return quantized_gemm.product_of_permuted(swiglu_by_lane(gate_up, pack_factor(form)), down, form)

    given = packed.words.view(torch.int8) if form == "int8 by row" else packed.words
    scales = packed.scales[:, None] if form == "int8 by row" else packed.scales
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantized_gemm, "packed_tensors", lambda *_: (given, scales, packed.zeros))
        compiled = torch.compile(product, backend=backend, fullgraph=True)
        for tokens in lengths:
            hidden = torch.randn(1, tokens, 128).half()
            gate, up = (hidden[0].float() @ matrix.float().T).half().float().chunk(2, -1)
            expected = (torch.nn.functional.silu(gate) * up).half().float() @ matrix.float().T
            torch.testing.assert_close(compiled(hidden).float(), expected, rtol=1e-2, atol=1e-2)
    assert len(frames) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
def test_one_compiled_layer_serves_prompts_of_every_length(
    model_folder, as_on_hopper: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tags: set[str] = set()
    compile_fx = inductor.compile_fx

    def watched(*arguments: Any, **settings: Any) -> Any:
        tags.add(torch.compiler.config.cache_key_tag)
        return compile_fx(*arguments, **settings)

    monkeypatch.setattr(inductor, "compile_fx", watched)
    model = unpacked(load(model_folder, "int8", dtype="bfloat16").model)
    decoder = native_decoder(model, CpuDevice(), capture=Rerun())
    # All prompts have a cache of 256 positions.
    for tokens in (160, 190, 220, 250):
        decoder.generate((torch.arange(tokens)[None] % 90 + 10).repeat(2, 1), 3)
    assert decoder.facts().prefill == "captured"
    # Layer and head of the step, a layer for the first prompt, and a layer for prompts of any length.
    assert decoder.facts().frames_compiled == 4
    # Only the layers of the prefill are compiled with the engine's setting.
    assert tags == {"", ", sums of 256 at once"}


@pytest.mark.slow
def test_mlp_with_another_activation_or_bias_is_not_fused(model_folder, as_on_hopper: list[tuple[str, int]]) -> None:
    model: Any = unpacked(load(model_folder, "int8", dtype="bfloat16").model)
    first, second = model.model.layers
    first.mlp.act_fn = torch.nn.GELU()
    optimize(model)
    assert not hasattr(first.mlp, "swiglu_kernels")
    assert second.mlp.swiglu_kernels == SwigluKernels(for_one_query=False, for_prompts=True)
    # A bias is added after the down projection.
    restore(model)
    first.mlp.act_fn, second.mlp.down_proj.bias = second.mlp.act_fn, torch.nn.Parameter(torch.zeros(128))
    optimize(model)
    assert not hasattr(second.mlp, "swiglu_kernels")
    assert hasattr(first.mlp, "swiglu_kernels")


def packed_of(*, outputs: int, inputs: int) -> torch.Tensor:
    return torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nf4_support_is_checked_in_the_models_dtype(
    model_folder, dtype: str, as_on_hopper: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    linear: Any = unpacked(load(model_folder, "bnb4", dtype=dtype).model).model.layers[0].mlp.gate_proj
    dtypes: list[torch.dtype] = []
    monkeypatch.setattr("benchmarker.kernels.prefill_gemm.why_not", lambda _, kind, __: dtypes.append(kind) or "no")
    assert quantized_gemm.max_packed_rows(linear, "nf4") == 128
    assert dtypes == [getattr(torch, dtype)]
    assert as_on_hopper == []
