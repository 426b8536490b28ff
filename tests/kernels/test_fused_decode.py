"""Fused decode step in Triton's interpreter, compared with float64, and the models that it supports.

Programmatic dependent launch and inline PTX are tested on a GPU (tests/engines/test_engines_gpu.py).
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.decoders import native
from benchmarker.engines.decoders.compile import CompiledStep
from benchmarker.engines.decoders.prefill_decode import decode_step
from benchmarker.hardware.device import CpuDevice
from benchmarker.kernels import fused_decode_step, gemv_dense
from benchmarker.kernels.fuse_qkv_gate_up import fuse_linears
from benchmarker.kernels.fused_decode_attention import Rotation
from benchmarker.kernels.fused_decode_layer import fused_decode_layer
from benchmarker.kernels.gemv_gptq_triton import can_read_by_ptx
from benchmarker.kernels.linear_dispatch import replace_linears
from benchmarker.schema.model import OWN_ATTENTION
from tests.engines.test_engines_graph import Rerun
from tests.interpreter import run_in_interpreter
from tests.loading import plain_native_decoder, with_uneven_norms

START = """
import torch
torch.manual_seed(0)
from benchmarker.kernels.gemv_fusion import GemvFusion
def check(result, expected, allowed=1e-5):
    error = float((result.double() - expected).norm() / expected.norm())
    assert error < allowed, error
def normed(vector, gain):
    return vector.double() * torch.rsqrt((vector.double() ** 2).mean(-1, keepdim=True) + 1e-6) * gain.double()
"""
MODEL = """
from transformers import Qwen3Config, Qwen3ForCausalLM
import benchmarker.kernels.gemv_dense as gemv_dense
import benchmarker.kernels.fused_decode_step as fused_decode_step
gemv_dense.why_not = lambda linear: None if type(linear.weight) is torch.nn.Parameter else "other weights"
fused_decode_step.supports_pdl = lambda device: True
# The interpreter takes as long for a program of 16 outputs as for one of a single output.
gemv_dense.tile_config_for = lambda inputs, element_bytes, fusion: gemv_dense.TileConfig(16, 256, 2, 2)
model = Qwen3ForCausalLM(Qwen3Config(
    vocab_size=300, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, initializer_range=0.1,
)).eval()
for parameter in model.parameters():
    if parameter.dim() == 1:
        parameter.data += torch.rand_like(parameter)
ids = torch.randint(0, 300, (1, 12))
"""
STEP = """
from benchmarker.kernels import optimize
from benchmarker.kernels.fused_decode_layer import LayerCache
optimize(model)
step = fused_decode_step.fused_decode_step(model, 2)
caches = [LayerCache(torch.zeros(1, 16, 2, 16), torch.zeros(1, 16, 2, 16)) for _ in range(2)]
rotation = step.rotation(16)
with torch.no_grad():
    expected = model(input_ids=ids).logits[0]
    for at in range(12):
        token, logits = step(ids[:, at : at + 1], caches, rotation, torch.tensor([at + 1], dtype=torch.int32))
        check(logits[0, 0], expected[at].double())
        assert int(token) == int(expected[at].argmax())
"""
IN_W8A8 = """
from benchmarker.kernels.scaled_linear import ScaledLinear
for layer in model.model.layers:
    for parent in (layer.self_attn, layer.mlp):
        for name, linear in list(parent.named_children()):
            if isinstance(linear, torch.nn.Linear):
                scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
                codes = (linear.weight.detach() / scale).round().to(torch.int8)
                setattr(parent, name, ScaledLinear(codes, scale, None))
"""
CASES = {
    "a dense product with its norm and residual": """
from benchmarker.kernels.gemv_dense import TileConfig, launch
hidden, weights, gain, residual = torch.randn(1040), torch.randn(70, 1040), torch.rand(1040), torch.randn(70)
expected = weights.double() @ normed(hidden, gain) + residual
check(launch(hidden, weights, None, GemvFusion(gain, 1e-6, residual)), expected)
check(launch(hidden, weights, None, GemvFusion(gain, 1e-6, residual), tile=TileConfig(4, 512, 4, 1)), expected)
""",
    "an int8 product with its norm and SwiGLU": """
from benchmarker.kernels.gemv_dense import launch
hidden, gain = torch.randn(1040), torch.rand(1040)
weights, scales = torch.randint(-128, 128, (140, 1040), dtype=torch.int8), torch.rand(140, 1) / 2000
both = (weights.double() * scales) @ normed(hidden, gain)
expected = torch.nn.functional.silu(both[:70]) * both[70:]
check(launch(hidden, weights, scales, GemvFusion(gain, 1e-6, swiglu=True)), expected)
""",
    "products of a quantized vector with its norm, SwiGLU and residual": """
from benchmarker.kernels.gemv_dense import TileConfig, launch
from benchmarker.kernels.scaled_linear import quantized_rows
hidden, gain, residual = torch.randn(1040).half(), torch.rand(1040).half(), torch.randn(140).half()
# Triton's interpreter rounds to FP8 wrongly. These numbers are FP8 codes already: the largest code makes the scale 1.
in_fp8 = (torch.randn(1040) * 50).clamp(-448, 448).to(torch.float8_e4m3fn).half()
in_fp8[7] = 448
for dtype, vector in ((torch.int8, hidden), (torch.float8_e4m3fn, in_fp8)):
    weights, scales = (torch.randn(140, 1040) * 30).clamp(-127, 127).to(dtype), torch.rand(140, 1) / 2000
    for norm in (None, gain) if dtype == torch.int8 else (None,):
        # Codes are those of the vector before the factor of the norm.
        rows = vector.float() if norm is None else vector.float() * norm.float()
        codes, scale = quantized_rows(rows.view(1, -1), dtype)
        factor = 1 if norm is None else torch.rsqrt((vector.double() ** 2).mean() + 1e-6)
        product = (weights.double() * scales) @ (codes.double() * scale).flatten() * factor
        fused = GemvFusion(norm, 1e-6, residual)
        check(launch(vector, weights, scales, fused, quantized=True), product + residual.double(), 1e-3)
        fused = GemvFusion(norm, 1e-6, swiglu=True)
        expected = torch.nn.functional.silu(product[:70]) * product[70:]
        check(launch(vector, weights, scales, fused, tile=TileConfig(2, 512, 2, 1), quantized=True), expected, 1e-3)
assert not launch(torch.zeros(1040).half(), weights, scales, quantized=True).any()
""",
    "GPTQ's products": """
from benchmarker.kernels.gemv_gptq import Matrix
from benchmarker.kernels.gemv_gptq_triton import TileConfig, launch
def packed(numbers):
    return (numbers.view(-1, 8, numbers.shape[1]) << 4 * torch.arange(8).view(1, 8, 1)).sum(1).to(torch.int32)
def made(inputs, outputs, group, is_symmetric):
    codes, zeros = torch.randint(0, 16, (inputs, outputs)), torch.randint(0, 16, (inputs // group, outputs))
    zeros = torch.full_like(zeros, 8) if is_symmetric else zeros
    scales = torch.rand(inputs // group, outputs) / 30
    weights = (codes - zeros.repeat_interleave(group, 0)).double() * scales.double().repeat_interleave(group, 0)
    return Matrix(packed(codes), None if is_symmetric else packed(zeros.T.contiguous()).T.contiguous(), scales), weights
hidden, gain, residual = torch.randn(640), torch.rand(640), torch.randn(192)
for group in (32, 64, 128):
    for is_symmetric in (False, True):
        matrix, weights = made(640, 72, group, is_symmetric)
        for tile in (None, TileConfig(8, 2, 1), TileConfig(8, 2, 2)):
            check(launch(hidden, [matrix], tile=tile), hidden.double() @ weights)
three = [made(640, outputs, 128, True) for outputs in (128, 32, 32)]
expected = torch.cat([normed(hidden, gain) @ weights for _, weights in three]) + residual
check(launch(hidden, [matrix for matrix, _ in three], GemvFusion(gain, 1e-6, residual)), expected)
(gate, gate_weights), (up, up_weights) = made(640, 72, 64, True), made(640, 72, 64, True)
expected = torch.nn.functional.silu(normed(hidden, gain) @ gate_weights) * (normed(hidden, gain) @ up_weights)
check(launch(hidden, [gate, up], GemvFusion(gain, 1e-6, swiglu=True)), expected)
for is_symmetric in (False, True):
    both, weights = made(640, 144, 64, is_symmetric)
    columns = [[None] * 2 if part is None else part.chunk(2, 1) for part in (both.words, both.zeros, both.scales)]
    gate, up = (normed(hidden, gain) @ part for part in weights.chunk(2, 1))
    halves = [Matrix(*part) for part in zip(*columns)]
    expected = torch.nn.functional.silu(gate) * up
    check(launch(hidden, halves, GemvFusion(gain, 1e-6, swiglu=True)), expected)
""",
    "attention with its norms, rotation and cache": """
import benchmarker.kernels.fused_decode_attention as module
from benchmarker.kernels.fused_decode_attention import Heads, Rotation, fused_decode_attention
module.AHEAD_BYTES = 4096
head_dim = 16
def rotated(vector, cosine, sine):
    return vector * cosine + torch.cat((-vector[..., 8:], vector[..., :8]), -1) * sine
cases = {200: (0, 1, 63, 64, 65, 180), 300: (299,), 900: (0, 64, 65, 800), 1100: (1050, 1090)}
assert [module.split_config_for(room, 64).splits for room in cases] == [1, 5, module.MAX_SPLITS, module.MAX_SPLITS]
for positions, filled in [(room, filled) for room, several in cases.items() for filled in several]:
    key_heads, group = (3, 5) if filled == 800 else (1, 20) if filled == 1090 else (2, 4)
    product = torch.randn((group + 2) * key_heads * head_dim)
    heads = Heads(torch.rand(16), torch.rand(16), 1e-6, 0.25, head_dim)
    angles = (torch.arange(positions)[:, None] * torch.rand(8)[None]).repeat(1, 2)
    rotation = Rotation(angles.cos(), angles.sin())
    key, value = torch.randn(1, positions, key_heads, head_dim), torch.randn(1, positions, key_heads, head_dim)
    keys, values = key.double().clone(), value.double().clone()
    lengths = torch.tensor([filled + 1], dtype=torch.int32)
    result = fused_decode_attention(product, heads, rotation, key, value, lengths)
    of_keys = key_heads * head_dim
    query, new_key, new_value = product.double().split([group * of_keys, of_keys, of_keys])
    cosine, sine = rotation.cosines[filled].double(), rotation.sines[filled].double()
    query = rotated(normed(query.view(-1, 16), heads.query_gain), cosine, sine)
    keys[0, filled] = rotated(normed(new_key.view(-1, 16), heads.key_gain), cosine, sine)
    values[0, filled] = new_value.view(-1, 16)
    past = (part[0, : filled + 1].transpose(0, 1).repeat_interleave(group, 0) for part in (keys, values))
    check(result, torch.nn.functional.scaled_dot_product_attention(query[:, None], *past, scale=0.25).flatten())
    check(key, keys)
    check(value, values)
""",
    "a step of layers like Llama's, without norms of heads": MODEL.replace("Qwen3", "Llama") + STEP,
    "a step of layers like Qwen2's, with a bias": MODEL.replace("Qwen3", "Qwen2").replace("head_dim=16,", "") + STEP,
    "the likeliest token": """
from benchmarker.kernels.fused_decode_step import greedy_token
logits = torch.randn(5000)
logits[200] = logits[4000] = 9
assert greedy_token(logits).tolist() == [[200]]
logits = torch.randn(151936).half()
assert int(greedy_token(logits)) == int(logits.argmax())
""",
    "a whole model's step": MODEL + STEP,
    "a step of layers in W8A8": MODEL + IN_W8A8 + STEP.replace("double())", "double(), 0.05)"),
    "models that look alike and are not": MODEL
    + """
from benchmarker.kernels import optimize
optimize(model)
step = fused_decode_step.fused_decode_step(model, 2)
assert step is not None
def capped(**arguments):
    output = type(model).forward(model, **arguments)
    output.logits = 5 * torch.tanh(output.logits / 5)
    return output
model.forward = capped
assert not fused_decode_step._is_the_models(model, step, 2)
del model.forward
attention = model.model.layers[1].self_attn
plain = type(attention.q_norm).forward
attention.q_norm.forward = lambda hidden: plain(attention.q_norm, hidden) + 1
assert fused_decode_step.fused_decode_step(model, 2) is None
del attention.q_norm.forward
model.model.layers[1].mlp.act_fn = torch.nn.GELU()
assert fused_decode_step.fused_decode_step(model, 2) is None
""",
    "the engine that is timed": MODEL
    + """
from benchmarker.engines.decoders.eager import EagerDecoder
from benchmarker.engines.decoders.graph_capture import Captured
from benchmarker.engines.decoders.native import native_decoder
from benchmarker.hardware.device import CpuDevice
class Rerun:
    def __call__(self, step):
        step()
        return Captured(step, None)
eager, native = EagerDecoder(model, CpuDevice()), native_decoder(model, CpuDevice(), prefill="plain", capture=Rerun())
with native.timed():
    made = native.log_probabilities(ids, prompt_tokens=8)
check(made, eager.log_probabilities(ids, prompt_tokens=8).double())
native.check()
facts = native.facts()
assert facts.compiled is None
assert {"one_row_layer", "one_row_attention"} <= {use.name for use in facts.kernels_used}
assert native.generate(ids[:, :8], 5).tokens == eager.generate(ids[:, :8], 5).tokens
""",
}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("name", CASES)
def test_fused_decode_matches_float64_in_the_interpreter(name: str) -> None:
    run_in_interpreter(START + CASES[name])


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    return replaced(monkeypatch)


def replaced(monkeypatch: pytest.MonkeyPatch, kind: str = "qwen3", **others: Any) -> Any:
    """Return a model of two layers with fused linears, on a device that is treated as a Hopper GPU."""
    monkeypatch.setattr(gemv_dense, "why_not", lambda _: None)
    monkeypatch.setattr(fused_decode_step, "supports_pdl", lambda _: True)
    torch.manual_seed(0)
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, **others}
    config = AutoConfig.for_model(
        kind, vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, initializer_range=0.1, **sizes
    )
    model: Any = with_uneven_norms(AutoModelForCausalLM.from_config(config)).eval()
    replace_linears(model)
    fuse_linears(model)
    return model


class CutOff(nn.Module):
    """SiLU that clips large activations."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(hidden).clamp(max=6)


def subtract_the_mean(layer: Any) -> None:
    plain = layer.input_layernorm.forward
    layer.input_layernorm.forward = lambda hidden: plain(hidden - hidden.mean(-1, keepdim=True))


def add_one_to_the_gain(layer: Any) -> None:
    plain = layer.input_layernorm.forward
    layer.input_layernorm.forward = lambda hidden: plain(hidden) * (1 + 1 / layer.input_layernorm.weight)


CHANGES: dict[str, Callable[[Any], object]] = {
    "the attention has sinks": lambda layer: setattr(layer.self_attn, "sinks", nn.Parameter(torch.zeros(4))),
    "the scores are capped": lambda layer: setattr(layer.self_attn, "attn_logit_softcapping", 50.0),
    "the attention has a window": lambda layer: setattr(layer.self_attn, "sliding_window", 4096),
    "the attention names no factor": lambda layer: delattr(layer.self_attn, "scaling"),
    "the query's norm is over all heads": lambda layer: setattr(
        layer.self_attn.q_norm, "weight", nn.Parameter(torch.ones(64))
    ),
    "the norms add different numbers": lambda layer: setattr(layer.self_attn.k_norm, "variance_epsilon", 1e-5),
    "a norm subtracts the mean": subtract_the_mean,
    "a norm adds 1 to its weight": add_one_to_the_gain,
    "a norm has a type of its own": lambda layer: layer.input_layernorm.double(),
    "large activations are cut off": lambda layer: setattr(layer.mlp, "act_fn", CutOff()),
    "the query alone has a bias": lambda layer: setattr(layer.self_attn.q_proj, "bias", nn.Parameter(torch.zeros(64))),
    "a linear has a bias": lambda layer: setattr(layer.mlp.down_proj, "bias", nn.Parameter(torch.zeros(64))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_layer_with_an_unsupported_property_is_not_fused(model: Any, change: str) -> None:
    layer = model.model.layers[1]
    assert fused_decode_layer(layer, 2) is not None
    CHANGES[change](layer)
    assert fused_decode_layer(layer, 2) is None


@pytest.mark.parametrize(("kind", "is_biased"), [("llama", False), ("mistral", False), ("qwen2", True)])
def test_layer_without_head_norms_is_fused(monkeypatch: pytest.MonkeyPatch, kind: str, is_biased: bool) -> None:
    fused_layer = fused_decode_layer(replaced(monkeypatch, kind).model.layers[0], 2)
    assert fused_layer is not None
    assert fused_layer.heads.query_gain is None
    assert (fused_layer.before_attention.residual is not None) == is_biased


def test_layer_with_position_scaled_queries_is_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fused_decode_layer(replaced(monkeypatch, "ministral3").model.layers[0], 2) is None


@pytest.mark.parametrize("head_dim", [8, 24])
def test_layer_with_unsupported_head_dim_is_not_fused(monkeypatch: pytest.MonkeyPatch, head_dim: int) -> None:
    model = replaced(monkeypatch, head_dim=head_dim)
    assert fused_decode_layer(model.model.layers[0], 2) is None
    assert fused_decode_step.fused_decode_step(model, 2) is None


def test_layer_with_other_key_heads_than_the_cache_is_not_fused(model: Any) -> None:
    assert fused_decode_layer(model.model.layers[0], 4) is None


def test_partial_rotary_embedding_is_not_fused(model: Any) -> None:
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq[:4]
    assert fused_decode_step.fused_decode_step(model, 2) is None


def test_model_with_another_dtype_than_its_embedding_is_not_fused(model: Any) -> None:
    model.model.embed_tokens.half()
    assert fused_decode_step.fused_decode_step(model, 2) is None


def test_rotation_table_includes_yarns_attention_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
    rotary = replaced(monkeypatch, rope_parameters=yarn, max_position_embeddings=256).model.rotary_emb
    step = fused_decode_step.FusedDecodeStep(nn.Embedding(2, 2), (), None, None, rotary)  # type: ignore[arg-type]
    table = step.rotation(30)
    cosines, sines = rotary(torch.zeros(1), torch.tensor([[29]]))
    assert rotary.attention_scaling > 1
    assert torch.equal(table.cosines[29], cosines[0, 0])
    assert torch.equal(table.sines[29], sines[0, 0])


def test_float32_or_misaligned_vectors_are_not_read_by_ptx() -> None:
    vector = torch.zeros(64, dtype=torch.float16)
    assert can_read_by_ptx(vector, None, vector[8:])
    assert not can_read_by_ptx(vector, vector.float())
    assert not can_read_by_ptx(vector[1:])


class CountedStep:
    """Stand-in for a decode step that counts its calls and records the sizes of its rotation tables."""

    def __init__(self) -> None:
        self.tables: list[int] = []
        self.calls = 0

    def rotation(self, positions: int) -> Rotation:
        self.tables.append(positions)
        return Rotation(torch.ones(positions, 16), torch.zeros(positions, 16))

    def __call__(self, token: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        return token, torch.zeros(1, 1, 128)


def test_each_shape_reports_the_decode_path_that_it_used(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step = CountedStep()
    monkeypatch.setattr(native, "fused_decode_step", lambda *_: step)
    monkeypatch.setattr(native, "optimize", lambda _: ())
    monkeypatch.setattr(CompiledStep, "run", lambda step, token, cache: decode_step(step.model, token, cache))
    decoder = plain_native_decoder(model, CpuDevice(), capture=Rerun())
    is_fused = []
    for batch, prompt_tokens in (1, 8), (2, 8), (1, 8), (1, 8), (1, 200), (4, 1000), (1, 1000):
        before = step.calls
        decoder.generate(torch.zeros(batch, prompt_tokens, dtype=torch.int64), 3)
        is_fused.append(step.calls > before)
        names = {use.name for use in decoder.facts().kernels_used}
        assert ({"one_row_layer", "one_row_attention"} <= names) == is_fused[-1]
        assert (decoder.facts().compiled is None) == is_fused[-1]
        assert (decoder.facts().attention == OWN_ATTENTION) == is_fused[-1]
        if is_fused[-1]:
            decoder.check()
        else:
            with pytest.raises(UnsupportedError, match="compiled nothing"):
                decoder.check()
    assert is_fused == [True, False, True, True, True, False, True]
    assert step.tables == [128, 128, 256, 1024]
