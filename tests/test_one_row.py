"""The step of one sequence as five kernels a layer, in Triton's interpreter, against the same sums in 64 bit.

A GPU tests that no kernel starts too early, and the PTX (tests/test_engines_gpu.py).
"""

import importlib.util
import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]

START = """
import torch
torch.manual_seed(0)
from benchmarker.kernels.gemv_ends import Ends
def check(result, expected, allowed=1e-5):
    error = float((result.double() - expected).norm() / expected.norm())
    assert error < allowed, error
def normed(vector, gain):
    return vector.double() * torch.rsqrt((vector.double() ** 2).mean(-1, keepdim=True) + 1e-6) * gain.double()
"""
MODEL = """
from transformers import Qwen3Config, Qwen3ForCausalLM
import benchmarker.kernels.gemv_dense as gemv_dense
import benchmarker.kernels.one_row_step as one_row_step
gemv_dense.supports = lambda linear: None if type(linear.weight) is torch.nn.Parameter else "other weights"
one_row_step.can_start_early = lambda device: True
model = Qwen3ForCausalLM(Qwen3Config(
    vocab_size=300, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, initializer_range=0.1,
)).eval()
for parameter in model.parameters():
    if parameter.dim() == 1:
        parameter.data += torch.rand_like(parameter)
ids = torch.randint(0, 300, (1, 12))
"""
CASES = {
    "a dense product with its norm and residual": """
from benchmarker.kernels.gemv_dense import Tile, launch
hidden, weights, gain, residual = torch.randn(1040), torch.randn(70, 1040), torch.rand(1040), torch.randn(70)
expected = weights.double() @ normed(hidden, gain) + residual
check(launch(hidden, weights, None, Ends(gain, 1e-6, residual)), expected)
check(launch(hidden, weights, None, Ends(gain, 1e-6, residual), tile=Tile(4, 512, 4, 1)), expected)
""",
    "an int8 product with its norm and SwiGLU": """
from benchmarker.kernels.gemv_dense import launch
hidden, gain = torch.randn(1040), torch.rand(1040)
weights, scales = torch.randint(-128, 128, (140, 1040), dtype=torch.int8), torch.rand(140, 1) / 2000
both = (weights.double() * scales) @ normed(hidden, gain)
expected = torch.nn.functional.silu(both[:70]) * both[70:]
check(launch(hidden, weights, scales, Ends(gain, 1e-6, swiglu=True)), expected)
""",
    "GPTQ's products": """
from benchmarker.kernels.gemv_gptq import Matrix, Tile, launch
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
        for tile in (None, Tile(8, 2, 1), Tile(8, 2, 2)):
            check(launch(hidden, [matrix], tile=tile), hidden.double() @ weights)
three = [made(640, outputs, 128, True) for outputs in (128, 32, 32)]
expected = torch.cat([normed(hidden, gain) @ weights for _, weights in three]) + residual
check(launch(hidden, [matrix for matrix, _ in three], Ends(gain, 1e-6, residual)), expected)
(gate, gate_weights), (up, up_weights) = made(640, 72, 64, True), made(640, 72, 64, True)
expected = torch.nn.functional.silu(normed(hidden, gain) @ gate_weights) * (normed(hidden, gain) @ up_weights)
check(launch(hidden, [gate, up], Ends(gain, 1e-6, swiglu=True)), expected)
""",
    "attention with its norms, rotation and cache": """
import benchmarker.kernels.one_row_attention as module
from benchmarker.kernels.one_row_attention import Heads, Rotation, one_row_attention
module.AHEAD_BYTES = 4096
head_dim, key_heads, group, positions = 16, 2, 4, 300
def rotated(vector, cosine, sine):
    return vector * cosine + torch.cat((-vector[..., 8:], vector[..., :8]), -1) * sine
for filled in (0, 1, 63, 64, 65, 270):
    product, heads = torch.randn((group + 2) * key_heads * head_dim), Heads(torch.rand(16), torch.rand(16), 1e-6, 0.25)
    angles = (torch.arange(positions)[:, None] * torch.rand(8)[None]).repeat(1, 2)
    rotation = Rotation(angles.cos(), angles.sin())
    key, value = torch.randn(1, positions, key_heads, head_dim), torch.randn(1, positions, key_heads, head_dim)
    keys, values = key.double().clone(), value.double().clone()
    lengths = torch.tensor([filled + 1], dtype=torch.int32)
    result = one_row_attention(product, heads, rotation, key, value, lengths)
    query, new_key, new_value = product.double().split([group * 32, 32, 32])
    cosine, sine = rotation.cosines[filled].double(), rotation.sines[filled].double()
    query = rotated(normed(query.view(-1, 16), heads.query_gain), cosine, sine)
    keys[0, filled] = rotated(normed(new_key.view(-1, 16), heads.key_gain), cosine, sine)
    values[0, filled] = new_value.view(-1, 16)
    past = (part[0, : filled + 1].transpose(0, 1).repeat_interleave(group, 0) for part in (keys, values))
    check(result, torch.nn.functional.scaled_dot_product_attention(query[:, None], *past, scale=0.25).flatten())
    check(key, keys)
    check(value, values)
""",
    "the likeliest token": """
from benchmarker.kernels.likeliest_token import likeliest_token
logits = torch.randn(5000)
logits[200] = logits[4000] = 9
assert likeliest_token(logits).tolist() == [[200]]
logits = torch.randn(151936).half()
assert int(likeliest_token(logits)) == int(logits.argmax())
""",
    "a whole model's step": MODEL
    + """
from benchmarker.kernels import optimize
from benchmarker.kernels.one_row_layer import LayerCache
optimize(model)
step = one_row_step.one_row_step(model, 2)
caches = [LayerCache(torch.zeros(1, 16, 2, 16), torch.zeros(1, 16, 2, 16)) for _ in range(2)]
rotation = step.rotation(16)
with torch.no_grad():
    expected = model(input_ids=ids).logits[0]
    for at in range(12):
        token, logits = step(ids[:, at : at + 1], caches, rotation, torch.tensor([at + 1], dtype=torch.int32))
        check(logits[0, 0], expected[at].double())
        assert int(token) == int(expected[at].argmax())
""",
    "models that look alike and are not": MODEL
    + """
from benchmarker.kernels import optimize
optimize(model)
assert one_row_step.one_row_step(model, 2) is not None
attention = model.model.layers[1].self_attn
plain = type(attention.q_norm).forward
attention.q_norm.forward = lambda hidden: plain(attention.q_norm, hidden) + 1
assert one_row_step.one_row_step(model, 2) is None
del attention.q_norm.forward
model.model.layers[1].mlp.act_fn = torch.nn.GELU()
assert one_row_step.one_row_step(model, 2) is None
""",
    "the engine that is timed": MODEL
    + """
import benchmarker.kernels.one_row_attention as one_row_attention
from benchmarker.engines.eager import EagerDecoder
from benchmarker.engines.graph_capture import Captured
from benchmarker.engines.native import NativeDecoder
from benchmarker.hardware.device import CpuDevice
one_row_attention.supports = lambda key: None if len(key) == 1 else "several sequences"
class Rerun:
    def __call__(self, step):
        step()
        return Captured(step, None)
eager, native = EagerDecoder(model, CpuDevice()), NativeDecoder(model, CpuDevice(), capture=Rerun())
with native.timed():
    made = native.score(ids, prompt_tokens=8)
check(made, eager.score(ids, prompt_tokens=8).double())
native.check()
facts = native.facts()
assert facts.compiled is None
assert {"one_row_layer", "one_row_attention"} <= {use.name for use in facts.kernels_used}
assert native.generate(ids[:, :8], 5).tokens.tolist() == eager.generate(ids[:, :8], 5).tokens.tolist()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_one_row_makes_what_64_bits_make(name: str) -> None:
    # Triton reads the variable when it is imported: a process of its own.
    done = subprocess.run(
        [sys.executable, "-c", START + CASES[name]],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
