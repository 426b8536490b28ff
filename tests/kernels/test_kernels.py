"""Selection of kernels for a model's linears, and outputs of rewritten models, with reference functions as kernels."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BitsAndBytesConfig, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

import benchmarker.kernels as package
from benchmarker.kernels import gemv_dense, gemv_gptq, gemv_nf4, optimize, restore
from benchmarker.kernels.fuse_qkv_gate_up import fuse_linears
from benchmarker.kernels.fuse_swiglu import fuse_swiglu
from benchmarker.kernels.fused_decode_layer import product_of
from benchmarker.kernels.linear_dispatch import replace_linears
from benchmarker.quantization.load import module_tensors, storage_bytes
from benchmarker.schema.base import Scalar
from tests.loading import load


def counted(replaced: dict[str, list[torch.nn.Module]]) -> dict[str, int]:
    """Return the number of linears of each kernel that is used."""
    return {kernel: len(modules) for kernel, modules in replaced.items() if modules}


def logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(input_ids=ids).logits
    return result.float()


def weights_size(model: PreTrainedModel) -> int:
    return storage_bytes(tensor for module in model.modules() for tensor in module_tensors(module))


@pytest.mark.slow
def test_gptq_gemv_requires_consecutive_groups(shape_folder) -> None:
    model = load(shape_folder, "gptq", dtype="bfloat16", dummy=True, kernel="torch").model
    packed = [module for module in model.modules() if hasattr(module, "qweight")]
    assert all(gemv_gptq.layout_reason(module) is None for module in packed)
    mixed, other = packed[:2]
    mixed.g_idx[0] += 1
    other.bits = 8
    assert gemv_gptq.layout_reason(mixed) == "groups that do not follow one another (desc_act)"
    assert gemv_gptq.why_not(other) == "not gptqmodel's TorchLinear in 4 bit"
    assert gemv_gptq.why_not(model.lm_head) == "not gptqmodel's TorchLinear in 4 bit"
    assert gemv_gptq.why_not(packed[2]) == "not on a GPU"
    # On a CPU, the library's kernel is kept.
    assert counted(replace_linears(model)) == {}


@pytest.mark.slow
def test_unpacked_words_equal_gptqmodels_dequantization(shape_folder, without_compiling) -> None:
    model = load(shape_folder, "gptq", dtype="bfloat16", dummy=True, kernel="torch").model
    packed = [module for module in model.modules() if hasattr(module, "qweight")]
    for linear in packed:
        matrix = gemv_gptq.unpacked(linear.qweight, linear.qzeros, linear.scales)
        expected = linear.dequantize_weight()
        assert matrix.shape == (linear.in_features, linear.out_features)
        assert torch.allclose(matrix.float(), expected.float(), rtol=1e-2, atol=1e-6)


def unpacked(model: Any) -> Any:
    """Keep bitsandbytes' GPU layout of the weights, which it repacks at the first call on some CPUs."""
    for linear in model.modules():
        if type(linear).__name__ == "Linear4bit":
            linear.support_avx512bf16_for_cpu = False
    return model


class ReferenceKernels:
    """Reference versions of the GPU kernels, which record the shapes of their matrices."""

    def __init__(self) -> None:
        self.shapes: list[torch.Size] = []
        self.swiglu_calls = 0

    def gemv_dense(self, hidden: torch.Tensor, rows: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
        return self._times(hidden, rows, scales).to(hidden.dtype)

    def gemv_swiglu(self, hidden: torch.Tensor, rows: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
        self.swiglu_calls += 1
        gate, up = self._times(hidden, rows, scales).chunk(2)
        return (torch.nn.functional.silu(gate) * up).to(hidden.dtype)

    def _times(self, hidden: torch.Tensor, rows: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
        self.shapes.append(rows.shape)
        result = hidden.float() @ rows.float().T
        return result if scales is None else result * scales.flatten()

    def gemv_nf4(
        self, hidden: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, numbers: torch.Tensor
    ) -> torch.Tensor:
        self.shapes.append(torch.Size((2 * packed.numel() // len(hidden), len(hidden))))
        codes = torch.stack((packed >> 4, packed & 15), 1).flatten().int()
        weights = (numbers[codes].view(len(scales), -1) * scales[:, None]).view(-1, len(hidden))
        return (weights @ hidden.float()).to(hidden.dtype)


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> ReferenceKernels:
    kernel = ReferenceKernels()
    for module, function in (("gemv_dense", "gemv_dense"), ("gemv_dense", "gemv_swiglu"), ("gemv_nf4", "gemv_nf4")):
        monkeypatch.setattr(f"benchmarker.kernels.{module}.{function}", getattr(kernel, function))
    monkeypatch.setattr("benchmarker.kernels.gemv_dense.supports_pdl", lambda device: True)
    monkeypatch.setattr("benchmarker.kernels.gemv_tensor_core.why_not", lambda *_: None)
    # The models are float32, so that results are not rounded.
    monkeypatch.setattr("benchmarker.kernels.gemv_tensor_core.HALF_TYPES", (torch.float32, torch.bfloat16))
    for target in ("linear_dispatch", "fuse_qkv_gate_up", "fuse_swiglu"):
        monkeypatch.setattr(
            f"benchmarker.kernels.{target}.is_one_query",
            lambda hidden, linear: hidden.numel() == linear.in_features,
        )
    return kernel


def qwen2() -> PreTrainedModel:
    """Return a model whose query, key and value have a bias."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    result = Qwen2ForCausalLM(config).eval()
    for module in result.modules():
        if isinstance(module, torch.nn.Linear) and module.bias is not None:
            torch.nn.init.normal_(module.bias)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("quant", ["fp16", "int8", "biased"])
def test_linears_with_one_input_are_fused_without_extra_memory(
    model_folder, quant: str, reference: ReferenceKernels
) -> None:
    model = qwen2() if quant == "biased" else load(model_folder, quant, dtype="bfloat16").model
    many, one = torch.arange(10, 30)[None], torch.tensor([[10]])
    expected = logits(model, many), logits(model, one)
    names, size = set(dict(model.named_modules())), weights_size(model)
    for _ in range(2):
        assert counted(replace_linears(model)) == {"gemv_dense": 15}
        assert len(fuse_linears(model)) == 10
        assert fuse_swiglu(model) == [layer.mlp for layer in model.model.layers]
    reference.shapes.clear()
    reference.swiglu_calls = 0
    result = logits(model, one)
    assert float((result - expected[1]).abs().max() / result.abs().max()) < 0.05
    assert reference.swiglu_calls == len(model.model.layers)
    rows = [shape[0] for shape in reference.shapes]
    attention, mlp = model.model.layers[0].self_attn, model.model.layers[0].mlp
    q, kv, hidden = attention.q_proj.out_features, attention.k_proj.out_features, attention.o_proj.out_features
    layer = [q + 2 * kv, hidden, 2 * mlp.up_proj.out_features, hidden]
    assert rows == [*layer, *layer, model.lm_head.out_features]
    assert (set(dict(model.named_modules())), weights_size(model)) == (names, size)
    key = attention.k_proj
    assert key.fused_slice.fused.output is None
    own, joint = (gemv_dense.as_rows(linear)[0] for linear in (key, key.fused_slice.fused.linear))
    assert own.untyped_storage().data_ptr() == joint.untyped_storage().data_ptr()
    # Several queries use the separate linears with their own weights.
    assert torch.equal(logits(model, many), expected[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "is_supported"), [({}, True), ({"quant_type": "fp4"}, True), ({"double_quant": True}, False)]
)
def test_nf4_gemv_requires_scales_that_are_not_quantized(
    model_folder, options: dict[str, Scalar], is_supported: bool, reference: ReferenceKernels
) -> None:
    model = unpacked(load(model_folder, "bnb4", dtype="float32", **options).model)
    many, one = torch.arange(10, 30)[None], torch.tensor([[10]])
    expected = logits(model, many), logits(model, one)
    for _ in range(2):
        assert counted(replace_linears(model)) == {"gemv_dense": 1} | ({"gemv_nf4": 14} if is_supported else {})
        assert len(fuse_linears(model)) == (10 if is_supported else 0)
    reference.shapes.clear()
    result = logits(model, one)
    assert float((result - expected[1]).abs().max() / result.abs().max()) < 1e-4
    layer = [128 + 2 * 64, 128, 2 * 256, 128] if is_supported else []
    assert [shape[0] for shape in reference.shapes] == [*layer, *layer, model.lm_head.out_features]
    assert torch.equal(logits(model, many), expected[0])


@pytest.mark.slow
def test_bias_is_added_in_the_models_dtype(tmp_path, reference: ReferenceKernels) -> None:
    # bitsandbytes stores the bias in its compute dtype, which a 4-bit checkpoint specifies.
    qwen2().save_pretrained(tmp_path)
    in_4bit = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    model = unpacked(
        Qwen2ForCausalLM.from_pretrained(
            tmp_path, dtype=torch.bfloat16, device_map="cpu", quantization_config=in_4bit
        ).eval()
    )
    one = torch.tensor([[10]])
    expected = logits(model, one)
    assert model.model.layers[0].self_attn.q_proj.bias.dtype == torch.float32
    assert counted(replace_linears(model)) == {"gemv_dense": 1, "gemv_nf4": 14}
    fuse_linears(model)
    reference.shapes.clear()
    result = logits(model, one)
    assert len(reference.shapes) == 4 * len(model.model.layers) + 1
    hidden = torch.randn(1, 1, 64, dtype=torch.bfloat16)
    assert model.model.layers[0].self_attn.q_proj(hidden).dtype == torch.bfloat16
    assert float((result - expected).abs().max() / result.abs().max()) < 0.05


@pytest.mark.slow
def test_nf4_gemv_requires_known_layout(
    model_folder, reference: ReferenceKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = unpacked(load(model_folder, "bnb4", dtype="float32").model)
    linear: Any = model.model.layers[0].mlp.gate_proj
    state = linear.weight.quant_state
    assert gemv_nf4.why_not(linear) is None
    for target, name, value in (
        (state, "blocksize", 128),
        (state, "blocksize", 32),
        (state, "nested", True),
        (state, "absmax", state.absmax.half()),
        (state, "shape", torch.Size(reversed(state.shape))),
        (linear, "in_features", 100),
        (linear.weight, "data", linear.weight.data.flatten().view(torch.bfloat16)),
        (linear.weight, "quant_state", None),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(target, name, value)
            assert gemv_nf4.why_not(linear) is not None, name
    assert gemv_nf4.why_not(linear) is None
    assert gemv_nf4.why_not(model.lm_head) == "not bitsandbytes' Linear4bit"
    # A wrapper of the same name may change the output.
    assert gemv_nf4.why_not(type("Linear4bit", (torch.nn.Module,), {})()) is not None
    linear.in_features = 100
    assert counted(replace_linears(model)) == {"gemv_dense": 1, "gemv_nf4": 13}


@pytest.mark.slow
@pytest.mark.parametrize("why_not", [None, "no NVRTC of CUDA 13 is found"])
def test_quantized_gemm_is_used_without_the_nf4_gemv(
    model_folder, reference: ReferenceKernels, monkeypatch: pytest.MonkeyPatch, why_not: str | None
) -> None:
    monkeypatch.setattr("benchmarker.kernels.gemv_tensor_core.why_not", lambda *_: why_not)
    monkeypatch.setattr("benchmarker.kernels.quantized_gemm.supports_pdl", lambda device: True)
    model = unpacked(load(model_folder, "bnb4", dtype="float32").model)
    one = torch.tensor([[10]])
    expected = logits(model, one)
    uses = {use.kernel: len(use.modules) for use in optimize(model)}
    assert uses.get("gemv_nf4") == (None if why_not else 14)
    assert (uses["packed_matmul"], uses["fuse_qkv_gate_up"]) == (14, 10)
    attention = model.model.layers[0].self_attn
    joint = product_of([attention.q_proj, attention.k_proj, attention.v_proj])
    assert (joint is None) == (why_not is not None)
    reference.shapes.clear()
    result = logits(model, one)
    assert len(reference.shapes) == (1 if why_not else 1 + 4 * len(model.model.layers))
    assert float((result - expected).abs().max() / result.abs().max()) < 1e-4
    restore(model)
    assert not any(hasattr(module, "has_gemv") for module in model.modules())


@pytest.mark.slow
def test_different_or_shared_weights_are_not_fused(model_folder, reference: ReferenceKernels) -> None:
    model = load(model_folder, "fp16", dtype="bfloat16").model
    first, second = (layer.self_attn for layer in model.model.layers)
    int8 = load(model_folder, "int8", dtype="bfloat16").model.model.layers[0].self_attn
    first.q_proj.weight = int8.q_proj.weight
    second.q_proj.weight = second.o_proj.weight = torch.nn.Parameter(second.o_proj.weight.data.repeat(1, 1))
    expected = logits(model, torch.tensor([[10]]))
    replace_linears(model)
    fuse_linears(model)
    assert not any(hasattr(linear, "fused_slice") for attention in (first, second) for linear in attention.children())
    assert hasattr(model.model.layers[1].mlp.gate_proj, "fused_slice")
    result = logits(model, torch.tensor([[10]]))
    assert float((result - expected).abs().max() / result.abs().max()) < 0.05


@pytest.mark.slow
def test_mlp_with_gelu_keeps_its_forward(model_folder, reference: ReferenceKernels) -> None:
    model = load(model_folder, "fp16", dtype="bfloat16").model
    first, second = (layer.mlp for layer in model.model.layers)
    first.act_fn = torch.nn.GELU()
    replace_linears(model)
    fuse_linears(model)
    fuse_swiglu(model)
    reference.swiglu_calls = 0
    with torch.no_grad():
        first(torch.randn(1, 1, 128, dtype=torch.bfloat16))
        assert reference.swiglu_calls == 0
        second(torch.randn(1, 1, 128, dtype=torch.bfloat16))
    assert reference.swiglu_calls == 1


class CutOff(torch.nn.SiLU):
    """SiLU that clips activations beyond the range of ordinary inputs."""

    def forward(self, gate: torch.Tensor) -> torch.Tensor:
        return super().forward(gate.clamp(max=20))


@pytest.mark.slow
def test_mlp_that_clips_activations_keeps_its_forward(model_folder, reference: ReferenceKernels) -> None:
    model = load(model_folder, "fp16", dtype="bfloat16").model
    for layer in model.model.layers:
        layer.mlp.act_fn = CutOff()
    replace_linears(model)
    fuse_linears(model)
    assert fuse_swiglu(model) == []


@pytest.mark.slow
def test_mlp_that_overflows_for_large_inputs_is_fused(model_folder, reference: ReferenceKernels) -> None:
    model = load(model_folder, "fp16", dtype="float16").model
    for layer in model.model.layers:
        layer.mlp.down_proj.weight.data *= 30
    replace_linears(model)
    fuse_linears(model)
    assert len(fuse_swiglu(model)) == 2


@pytest.mark.slow
def test_group_scaled_int8_keeps_torchaos_kernel(model_folder, reference: ReferenceKernels) -> None:
    model = load(model_folder, "int8", dtype="bfloat16", group_size=32).model
    expected = logits(model, torch.tensor([[10]]))
    # Only the output layer, which is not quantized.
    assert counted(replace_linears(model)) == {"gemv_dense": 1}
    assert fuse_linears(model) == []
    reference.shapes.clear()
    result = logits(model, torch.tensor([[10]]))
    assert float((result - expected).abs().max() / result.abs().max()) < 0.05
    assert [shape[0] for shape in reference.shapes] == [model.lm_head.out_features]


@pytest.mark.slow
def test_double_quantized_or_unquantized_linears_are_not_fused(model_folder) -> None:
    nested = load(model_folder, "bnb4", dtype="float32", double_quant=True).model
    assert fuse_linears(nested) == []
    assert fuse_linears(load(model_folder, "fp16", dtype="float32").model) == []


@pytest.mark.slow
@pytest.mark.parametrize("quant", ["fp16", "int8", "bnb4"])
def test_restore_restores_classes_and_outputs(model_folder, quant: str, reference: ReferenceKernels) -> None:
    model = unpacked(load(model_folder, quant, dtype="float32").model)
    classes, expected = [type(module) for module in model.modules()], logits(model, torch.tensor([[10]]))
    kernels = [replacement.kernel for replacement in optimize(model)]
    joined = ["fuse_qkv_gate_up"] if quant == "bnb4" else ["fuse_qkv_gate_up", "gemv_swiglu"]
    assert kernels == ["gemv_dense", *(["gemv_nf4"] if quant == "bnb4" else []), *joined]
    assert [type(module) for module in model.modules()] != classes
    reference.shapes.clear()
    restore(model)
    assert [type(module) for module in model.modules()] == classes
    assert torch.equal(logits(model, torch.tensor([[10]])), expected)
    assert reference.shapes == []


def test_kernels_import_no_other_package() -> None:
    for path in Path(package.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            foreign = [name for name in names if name.startswith("benchmarker") and ".kernels" not in name]
            assert not foreign, f"{path.name} imports {foreign}"
