"""The runtimes on a real GPU: captures, our kernels, and what a launch costs. Order and equality, no speed."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.decoders import static_kv_cache
from benchmarker.engines.decoders.compile import compile_decoder
from benchmarker.engines.decoders.eager import EagerDecoder
from benchmarker.engines.decoders.graph_capture import GraphCapture
from benchmarker.engines.decoders.native import native_decoder
from benchmarker.engines.decoders.static_decoder import cuda_graph_decoder
from benchmarker.engines.decoders.static_kv_cache import StaticKVCache
from benchmarker.engines.decoders.torch_engine import TorchDecoder
from benchmarker.hardware.device import find_device
from benchmarker.kernels.fuse_qkv_gate_up import fuse_linears
from benchmarker.kernels.gemv_fusion import NO_FUSION, GemvFusion
from benchmarker.kernels.gemv_gptq import ALL_EIGHT
from benchmarker.kernels.launch_support import supports_pdl
from benchmarker.kernels.linear_dispatch import replace_linears
from benchmarker.measure.device_limits import measure_limits
from benchmarker.measure.profile_repeat import count_kernels
from benchmarker.quantization.load import load_model
from tests.gemv_sums import with_fusion
from tests.loading import plain_native_decoder, tokens_of, with_uneven_norms

HAS_PDL = torch.cuda.is_available() and supports_pdl(torch.device("cuda", 0))

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA or ROCm device"),
]


Kind = Callable[..., TorchDecoder]


def model(dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=10, num_attention_heads=8,
        num_key_value_heads=2, head_dim=64, tie_word_embeddings=True, initializer_range=0.1,
    )  # fmt: skip
    return with_uneven_norms(Qwen3ForCausalLM(config)).to("cuda", dtype)


def prompt(*, batch: int = 2, tokens: int = 26) -> torch.Tensor:
    return torch.arange(2, 2 + tokens, device="cuda").repeat(batch, 1)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("depth", [0, 1500])
@pytest.mark.parametrize("kind", [cuda_graph_decoder, compile_decoder, plain_native_decoder])
def test_a_captured_step_makes_the_tokens_of_generate(kind: Kind, depth: int, batch: int) -> None:
    tried, device, asked = model(), find_device("cuda"), prompt(batch=batch)
    context = torch.arange(depth, device="cuda").remainder(1024).repeat(batch, 1) if depth else None
    expected = EagerDecoder(tried, device).generate(asked, 64, context=context).tokens
    runtime: TorchDecoder = kind(tried, device)
    runtime.generate(asked, 64, context=context)
    with runtime.timed():
        made = runtime.generate(asked, 64, context=context).tokens
    runtime.check()
    facts = runtime.facts()
    assert len(set(expected[0])) > 10
    assert made == expected
    ours = {use.name: use.covered for use in facts.kernels_used if use.origin == "benchmarker"}
    linears = {"gemv_dense": 71, "fuse_qkv_gate_up": None, "gemv_swiglu": None} if HAS_PDL else {}
    attends = {} if depth else {"decode_attention": None}
    if HAS_PDL and batch == 1:
        attends = {"one_row_layer": None, "one_row_attention": None}
    assert ours == ({**linears, **attends} if kind is plain_native_decoder else {})
    assert (facts.graphs_captured, facts.graph_replays) == (1, 63)
    assert facts.graph_kernels == runtime.kernels_per_token(lambda work: count_kernels(work, device))
    assert runtime.graph_pool_bytes is not None


def test_captured_prefills_of_many_lengths_leave_each_other_alone() -> None:
    # A graph reads tensors by address: where one of them is given back, the next graph's takes its place.
    tried, device = model(), find_device("cuda")
    eager, captured = EagerDecoder(tried, device), native_decoder(tried, device)
    for tokens in (26, 70, 5, 130, 26, 100, 70):
        asked = prompt(batch=1, tokens=tokens)
        expected = eager.generate(asked, 24).tokens
        assert captured.generate(asked, 24).tokens == expected, tokens
        assert captured.generate(prompt(batch=1, tokens=200)[:, :tokens], 24).tokens == expected, tokens
    ids = prompt(batch=1, tokens=130)
    with torch.no_grad():
        own = tried(ids).logits[0].float().log_softmax(-1)
    for tokens in (3, 40, 70, 130):
        assert torch.allclose(captured.log_probabilities(ids[:, :tokens]).to(own), own[:tokens], atol=1e-3), tokens
    assert captured.facts().prefill == "captured"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("filled", [1, 27, 1000, 2048])
def test_every_way_of_attending_agrees(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, filled: int) -> None:
    cache = StaticKVCache(model(dtype), batch=3, length=2048)
    cache.go_to(filled - 1)
    torch.manual_seed(0)
    layer = cache.layers.layers[0]
    layer.stored_keys.normal_()
    layer.stored_values.normal_()
    query = torch.randn(3, 8, 1, 64, device="cuda", dtype=dtype)
    made = {}
    for way in (static_kv_cache.FLASH, static_kv_cache.ONE_KERNEL, static_kv_cache.MATMULS):
        if (
            way == static_kv_cache.FLASH
            and static_kv_cache.attention_backend(layer.keys, layer.values) != static_kv_cache.FLASH
        ):
            continue  # AMD's does not take lengths
        monkeypatch.setattr(static_kv_cache, "attention_backend", lambda *_, way=way, **__: way)
        made[way], _ = static_kv_cache.attend(
            torch.nn.Identity(),
            query,
            layer.keys,
            layer.values,
            None,
            scaling=0.125,
            sequence_lengths=cache.sequence_lengths,
        )
        monkeypatch.undo()
    for way, values in made.items():
        assert torch.allclose(values.float(), made[static_kv_cache.MATMULS].float(), atol=2e-2), way


@pytest.mark.parametrize("quant", ["fp16", "int8", "bnb4", "gptq"])
@pytest.mark.parametrize("kind", [cuda_graph_decoder, compile_decoder, plain_native_decoder])
def test_every_form_can_be_captured_and_compiling_makes_fewer_kernels(shape_folder, kind: Kind, quant: str) -> None:
    device = find_device("cuda")
    options = {"kernel": "torch"} if quant == "gptq" else {}
    tried = load_model(str(shape_folder), quant, device="cuda", load_format="dummy", options=options)
    runtime = kind(tried, device)
    asked = prompt(batch=1)
    tokens_of(runtime, asked, 16)
    kernels = runtime.kernels_per_token(lambda work: count_kernels(work, device))
    in_generate = EagerDecoder(tried, device)
    in_generate.generate(asked, 16)
    assert kernels is not None
    before = in_generate.kernels_per_token(lambda work: count_kernels(work, device))
    assert before is not None
    assert kernels <= before
    if kind is not cuda_graph_decoder:
        assert kernels < before
        is_one_row = HAS_PDL and kind is plain_native_decoder
        assert runtime.facts().frames_compiled == (0 if is_one_row else 2)


@pytest.mark.parametrize(("inputs", "outputs", "group"), [(2560, 1024, 128), (9728, 2560, 128), (640, 200, 64)])
def test_a_vector_times_packed_words_is_their_product(inputs: int, outputs: int, group: int) -> None:
    from benchmarker.kernels.gemv_gptq import gemv_gptq

    torch.manual_seed(0)

    def packed(*shape: int) -> torch.Tensor:
        return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32, device="cuda")

    hidden = torch.randn(inputs, device="cuda", dtype=torch.float16)
    words, zeros = packed(inputs // 8, outputs), packed(inputs // group, outputs // 8)
    scales = torch.rand(inputs // group, outputs, device="cuda", dtype=torch.float16) / 100
    shifts = torch.arange(0, 32, 4, device="cuda")
    numbers = ((words[:, None] >> shifts[None, :, None]) & 15).view(inputs, outputs).double()
    zero = ((zeros[:, :, None] >> shifts) & 15).view(-1, outputs).double()
    weights = (numbers - zero.repeat_interleave(group, 0)) * scales.double().repeat_interleave(group, 0)
    expected = hidden.double() @ weights
    made = gemv_gptq(hidden, words, zeros, scales).double()
    assert float((made - expected).norm() / expected.norm()) < 5e-4


def fusions_for(inputs: int, outputs: int, dtype: torch.dtype) -> list[GemvFusion]:
    """Everything that stands around a product in a layer, and nothing."""
    gain = (1 + torch.randn(inputs, device="cuda") / 4).to(dtype)
    return [NO_FUSION, GemvFusion(gain, 1e-6), GemvFusion(residual=torch.randn(outputs, device="cuda").to(dtype)),
            GemvFusion(gain, 1e-6, swiglu=True)]  # fmt: skip


@pytest.mark.skipif(not HAS_PDL, reason="no kernel can start early on this device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("inputs", "outputs", "kind"),
    [(2560, 1024, "nf4"), (9728, 2560, "nf4"), (4096, 2560, "fp4"), (896, 4864, "nf4"), (128, 48, "fp4")],
)
def test_a_vector_times_codes_is_their_product(inputs: int, outputs: int, kind: str, dtype: torch.dtype) -> None:
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    from benchmarker.kernels.gemv_nf4 import launch

    torch.manual_seed(0)
    hidden = torch.randn(inputs, device="cuda").to(dtype)
    rows = torch.randn(outputs, inputs, device="cuda") / inputs**0.5
    packed, state = quantize_4bit(rows, blocksize=64, quant_type=kind)
    weights = dequantize_4bit(packed, state)
    for fusion in fusions_for(inputs, outputs, dtype):
        expected = with_fusion(hidden, weights, fusion)
        made = launch(hidden, packed, state.absmax, state.code, fusion).double()
        assert float((made - expected).norm() / expected.norm()) < (5e-3 if dtype == torch.bfloat16 else 7e-4), fusion


@pytest.mark.skipif(not HAS_PDL, reason="no kernel can start early on this device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(2560, (4096, 1024, 1024)), (9728, (2560,)), (2560, (9728, 9728)), (896, (128, 16, 16))]
)
@pytest.mark.parametrize("has_zeros", [False, True])
def test_a_vector_times_words_on_tensor_cores_is_their_product(
    inputs: int, outputs: tuple[int, ...], dtype: torch.dtype, has_zeros: bool
) -> None:
    from benchmarker.kernels.gemv_gptq import Matrix, on_tensor_cores, supports_tensor_cores, unpacked

    torch.manual_seed(0)
    hidden = torch.randn(inputs, device="cuda").to(dtype)
    matrices = [
        Matrix(
            torch.randint(-(2**31), 2**31 - 1, (inputs // 8, count), dtype=torch.int32, device="cuda"),
            torch.randint(-(2**31), 2**31 - 1, (inputs // 128, count // 8), dtype=torch.int32, device="cuda")
            if has_zeros
            else None,
            (torch.rand(inputs // 128, count, device="cuda") / 4 / inputs**0.5).to(dtype),
        )
        for count in outputs
    ]
    eights = [torch.full((inputs // 128, count // 8), ALL_EIGHT, dtype=torch.int32, device="cuda") for count in outputs]
    zeros = [eight if one.zeros is None else one.zeros for one, eight in zip(matrices, eights, strict=True)]
    weights = torch.cat(
        [unpacked(one.words, zero, one.scales.double()).T for one, zero in zip(matrices, zeros, strict=True)]
    )
    for fusion in fusions_for(inputs, sum(outputs), dtype):
        if fusion.swiglu != (len(outputs) == 2):
            continue
        assert supports_tensor_cores(hidden, matrices, fusion)
        expected = with_fusion(hidden, weights, fusion)
        made = on_tensor_cores(hidden, matrices, fusion)
        error = float((made.double() - expected).norm() / expected.norm())
        assert error < (4e-3 if dtype == torch.bfloat16 else 7e-4), fusion
        if fusion.swiglu:
            words, scales, zero = (
                torch.cat(parts, 1)
                for parts in ([one.words for one in matrices], [one.scales for one in matrices], zeros)
            )
            halves = zero.chunk(2, 1) if has_zeros else (None, None)
            columns = [Matrix(*part) for part in zip(words.chunk(2, 1), halves, scales.chunk(2, 1), strict=True)]
            assert supports_tensor_cores(hidden, columns, fusion)
            assert torch.equal(on_tensor_cores(hidden, columns, fusion), made)


@pytest.mark.skipif(not HAS_PDL, reason="no kernel can start early on this device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("outputs", "inputs"), [(1024, 2560), (2560, 9728), (203, 640), (33, 32768)])
def test_a_vector_times_rows_is_their_product(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    from benchmarker.kernels.gemv_dense import gemv_dense

    torch.manual_seed(0)
    hidden = torch.randn(inputs, device="cuda").to(torch.bfloat16 if dtype == torch.bfloat16 else torch.float16)
    if dtype == torch.int8:
        rows = torch.randint(-128, 128, (outputs, inputs), dtype=dtype, device="cuda")
        scales = torch.rand(outputs, 1, device="cuda") / 128
        expected = (rows.double() @ hidden.double()) * scales.double().flatten()
    else:
        rows, scales = torch.randn(outputs, inputs, device="cuda").to(dtype), None
        expected = rows.double() @ hidden.double()
    made = gemv_dense(hidden, rows, scales)
    assert made.dtype == hidden.dtype
    assert float((made.double() - expected).norm() / expected.norm()) < (4e-3 if dtype == torch.bfloat16 else 5e-4)


@pytest.mark.skipif(not HAS_PDL, reason="no kernel can start early on this device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("outputs", "inputs"), [(9728, 2560), (203, 640), (33, 32768)])
def test_a_gate_and_what_it_gates_are_one_product(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    from benchmarker.kernels.gemv_dense import gemv_swiglu

    torch.manual_seed(0)
    hidden = torch.randn(inputs, device="cuda").to(torch.bfloat16 if dtype == torch.bfloat16 else torch.float16)
    scales = None
    if dtype == torch.int8:
        rows = torch.randint(-128, 128, (2 * outputs, inputs), dtype=dtype, device="cuda")
        scales = torch.rand(2 * outputs, 1, device="cuda") / 4096
    else:
        rows = (torch.randn(2 * outputs, inputs, device="cuda") / inputs**0.5).to(dtype)
    both = (rows.double() @ hidden.double()) * (1 if scales is None else scales.double().flatten())
    expected = torch.nn.functional.silu(both[:outputs]) * both[outputs:]
    made = gemv_swiglu(hidden, rows, scales)
    assert float((made.double() - expected).norm() / expected.norm()) < (4e-3 if dtype == torch.bfloat16 else 5e-4)


@pytest.mark.parametrize("quant", ["fp16", "int8", "bnb4"])
def test_in_32_bit_every_form_makes_the_tokens_of_generate(shape_folder, quant: str) -> None:
    tried = load_model(str(shape_folder), quant, device="cuda", dtype="float32", load_format="dummy")
    device, asked = find_device("cuda"), prompt(batch=1)
    expected = EagerDecoder(tried, device).generate(asked, 64).tokens
    assert len(set(expected[0])) > 10
    for kind in (compile_decoder, plain_native_decoder):
        runtime = kind(tried, device)
        assert tokens_of(runtime, asked, 64) == [list(row) for row in expected]
        ours = {use.name: use.covered for use in runtime.facts().kernels_used if use.origin == "benchmarker"}
        is_ours = HAS_PDL and kind is plain_native_decoder
        assert ours.get("gemv_dense") == ((1 if quant == "bnb4" else 15) if is_ours else None)
        # Its kernel is for 16 bits.
        assert "gemv_nf4" not in ours


@pytest.mark.parametrize("quant", ["fp16", "int8", "gptq", "bnb4"])
@pytest.mark.parametrize("kind", [cuda_graph_decoder, compile_decoder, plain_native_decoder])
def test_the_timed_step_scores_a_text_as_the_models_own_forward(shape_folder, kind: Kind, quant: str) -> None:
    options = {"kernel": "torch"} if quant == "gptq" else {}
    tried = load_model(str(shape_folder), quant, device="cuda", load_format="dummy", options=options)
    ids = torch.arange(10, 60, device="cuda")[None]
    with torch.no_grad():
        expected = tried(ids).logits[0].float().log_softmax(-1).cpu()
    made = kind(tried, find_device("cuda")).log_probabilities(ids)
    divergence = (expected.exp() * (expected - made)).sum(-1)
    assert float(divergence.max()) < 1e-3


@pytest.mark.parametrize("kind", [EagerDecoder, cuda_graph_decoder, plain_native_decoder])
def test_streaming_gives_the_tokens_of_generate_up_to_the_stop(kind: Kind) -> None:
    tried, device, asked = model(), find_device("cuda"), prompt(batch=1)
    expected: list[int] = list(EagerDecoder(tried, device).generate(asked, 60).tokens[0])
    decoder = kind(tried, device)
    assert [token for piece in decoder.stream(asked, 60, frozenset()) for token in piece] == expected
    stop = expected[30]
    until = expected[: expected.index(stop)]
    assert [token for piece in decoder.stream(asked, 60, frozenset([stop])) for token in piece] == until


def products() -> list[Callable[[torch.Tensor], torch.Tensor]]:
    """Of 2,560 inputs, by every kernel that starts early."""
    from bitsandbytes.functional import quantize_4bit

    from benchmarker.kernels import gemv_dense as dense
    from benchmarker.kernels import gemv_gptq as gptq
    from benchmarker.kernels.decode_attention import decode_attention
    from benchmarker.kernels.fused_decode_attention import Heads, Rotation, fused_decode_attention
    from benchmarker.kernels.fused_decode_step import greedy_token
    from benchmarker.kernels.gemv_dense import gemv_dense, gemv_swiglu
    from benchmarker.kernels.gemv_gptq import Matrix, gemv_gptq
    from benchmarker.kernels.gemv_nf4 import gemv_nf4

    words = torch.randint(-(2**31), 2**31 - 1, (2560 // 8, 1024), dtype=torch.int32, device="cuda")
    zeros = torch.randint(-(2**31), 2**31 - 1, (20, 128), dtype=torch.int32, device="cuda")
    scales = torch.rand(20, 1024, device="cuda", dtype=torch.float16) / 100
    rows = torch.randn(1024, 2560, device="cuda").half()
    packed, state = quantize_4bit(rows, blocksize=64, quant_type="nf4")

    cache = torch.randn(1, 40, 10, 128, device="cuda").half()
    filled = torch.full((1,), 30, dtype=torch.int32, device="cuda")
    keys, values = (torch.randn(1, 40, 4, 128, device="cuda").half() for _ in range(2))
    gain = torch.rand(2560, device="cuda").half()
    heads = Heads(gain[:128].clone(), gain[128:256].clone(), 1e-6, 0.1, 128)
    rotation = Rotation(torch.rand(40, 128, device="cuda"), torch.rand(40, 128, device="cuda"))
    long_keys, long_values = (torch.randn(1, 4400, 4, 128, device="cuda").half() for _ in range(2))
    far = Rotation(*(torch.rand(4400, 128, device="cuda") for _ in range(2)))
    far_filled = torch.full((1,), 4300, dtype=torch.int32, device="cuda")

    def twice_to_a_long_cache(hidden: torch.Tensor) -> torch.Tensor:
        made = fused_decode_attention(hidden, heads, far, long_keys, long_values, far_filled)
        again = torch.cat((made, hidden[len(made) :]))
        return fused_decode_attention(again, heads, far, long_keys, long_values, far_filled)

    return [
        lambda hidden: gemv_gptq(hidden, words, zeros, scales),
        lambda hidden: gemv_dense(hidden, rows, None),
        lambda hidden: gemv_swiglu(hidden, rows, None),
        lambda hidden: decode_attention(hidden.view(1, 20, 128), cache, cache, filled, 0.1),
        lambda hidden: gemv_nf4(hidden, packed, state.absmax, state.code),
        lambda hidden: dense.launch(hidden, rows, None, GemvFusion(gain, 1e-6, residual=hidden[:1024].contiguous())),
        lambda hidden: gptq.launch(hidden, [Matrix(words, None, scales)] * 2, GemvFusion(gain, 1e-6, swiglu=True)),
        lambda hidden: fused_decode_attention(hidden, heads, rotation, keys, values, filled),
        twice_to_a_long_cache,
        greedy_token,
    ]


@pytest.mark.skipif(not HAS_PDL, reason="no kernel can start early on this device")
@pytest.mark.parametrize("which", range(10))
def test_a_kernel_that_starts_early_waits_for_the_vector_that_the_one_before_it_makes(which: int) -> None:
    from benchmarker.kernels.gemv_dense import gemv_dense

    torch.manual_seed(0)
    product = products()[which]
    matrix = torch.randn(2560, 2560, device="cuda").half() / 50
    sources = [torch.randn(2560, device="cuda").half() for _ in range(2)]
    expected = []
    for one in sources:
        vector = gemv_dense(one, matrix, None)
        torch.cuda.synchronize()
        expected.append(product(vector))
    source = sources[0].clone()
    product(gemv_dense(source, matrix, None))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = product(gemv_dense(source, matrix, None))
    # `gemv_dense` lets the next one start before it has read anything: who does not wait finds the vector of the
    # replay before, which is the other source's.
    for at in range(100):
        source.copy_(sources[at % 2])
        graph.replay()
        assert torch.equal(made, expected[at % 2])


@pytest.mark.skipif(not HAS_PDL, reason="no kernel can start early on this device")
@pytest.mark.parametrize("which", [0, 1])
def test_kernels_that_start_early_wait_for_one_another(which: int) -> None:
    # What a product made is the next one's vector, 60 times over: one that does not wait reads an older one.
    torch.manual_seed(0)
    matrices = [torch.randn(2560, 2560, device="cuda").half() / 50 for _ in range(6)]
    from benchmarker.kernels.gemv_dense import gemv_dense

    start = torch.randn(2560, device="cuda").half()

    def chain(before: Callable[[], None]) -> torch.Tensor:
        hidden = start
        for at in range(60):
            before()
            hidden = gemv_dense(hidden, matrices[at % 6], None)
            if which:
                hidden = hidden * (hidden.float().square().mean() + 1e-6).rsqrt().half()
        return hidden

    expected = chain(torch.cuda.synchronize)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = chain(lambda: None)
    for _ in range(50):
        made.zero_()
        graph.replay()
        assert torch.equal(made, expected)


# GPTQ's: one row, a packed product, and a prompt that is unpacked for.
@pytest.mark.parametrize(("quant", "rows"), [("bnb4", 1), ("gptq", 1), ("gptq", 3), ("gptq", 600)])
def test_products_made_as_one_are_those_of_each_linear(shape_folder, quant: str, rows: int) -> None:
    if quant == "gptq" and not HAS_PDL:
        pytest.skip("no kernel can start early on this device")
    options = {"kernel": "torch"} if quant == "gptq" else {}
    tried = load_model(str(shape_folder), quant, device="cuda", load_format="dummy", options=options)
    attention, mlp = tried.model.layers[0].self_attn, tried.model.layers[0].mlp
    torch.manual_seed(0)
    hidden = torch.randn(1, rows, 128, device="cuda", dtype=torch.float16)
    together = (attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj)

    def multiply() -> list[torch.Tensor]:
        return [linear(hidden) for group in together for linear in group]

    with torch.no_grad():
        expected = multiply()
        if quant == "gptq":
            replace_linears(tried)
        assert len(fuse_linears(tried)) == 10
        # Whoever calls a linear by itself gets what it was.
        assert all(map(torch.equal, multiply(), expected))
        made = torch.compile(multiply, fullgraph=True)()
    for one, other in zip(made, expected, strict=True):
        assert float((one - other).norm() / other.norm()) < 2e-3


def test_what_waits_for_the_device_cannot_be_captured_and_is_named() -> None:
    tried = model()
    tried.model.norm.register_forward_hook(lambda module, inputs, output: output * float(output.isfinite().all()))
    with pytest.raises(UnsupportedError, match=r"test_engines_gpu\.py:\d+ `.*isfinite.*captur"):
        cuda_graph_decoder(tried, find_device("cuda")).generate(prompt(), 4)
    # The device is none the worse for it.
    assert cuda_graph_decoder(model(), find_device("cuda")).generate(prompt(), 4).tokens[1][3] >= 0


def test_kernels_on_the_default_stream_are_missed_and_their_layer_is_named() -> None:
    # A graph without them replays in a third of the time and computes nonsense.
    tried = load_model("qwen3-tiny", "gptq", device="cuda", load_format="dummy", options={"kernel": "exllama_v2"})
    with pytest.raises(UnsupportedError, match="ExllamaV2Linear launches a kernel that no graph can hold"):
        cuda_graph_decoder(tried, find_device("cuda")).generate(prompt(batch=1), 4)
    with pytest.raises(UnsupportedError, match="captured in a graph"):
        compile_decoder(tried, find_device("cuda")).generate(prompt(batch=1), 4)
    # A failed capture leaves torch's generator of random numbers unusable; the engine mends it.
    assert torch.randn(8, device="cuda").isfinite().all()


def test_the_driver_counts_the_kernels_of_a_graph() -> None:
    numbers = torch.ones(1000, device="cuda")
    ones = torch.ones_like(numbers)
    captured = GraphCapture(find_device("cuda"))(lambda: numbers.mul_(2).add_(1).zero_().copy_(ones))
    assert captured.kernels == 4


def test_a_launch_costs_the_host_more_alone_than_in_a_graph() -> None:
    limits = measure_limits(find_device("cuda"), "float16")
    assert limits.array_bytes == 2**31
    assert limits.launch_s is not None
    assert limits.operator_s is not None
    assert limits.graph_kernel_s is not None
    assert limits.graph_kernel_s < limits.launch_s < limits.operator_s
    assert limits.read_bytes_per_s > 1e11
