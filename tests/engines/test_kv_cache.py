"""Test the quantized KV cache of `eager`: stored bytes, divergence, depth, and refusals."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from benchmarker.core.errors import FieldError, UnsupportedError
from benchmarker.engines.decoders.eager import missing_library, quantized_cache, value_bytes
from benchmarker.engines.decoders.torch_engine import TorchDecoder
from benchmarker.engines.registry import torch_engine
from benchmarker.hardware.device import CpuDevice
from benchmarker.quality.step_check import step_divergence
from benchmarker.schema.quality import step_line
from benchmarker.workloads.generation.generation_job import resolve
from benchmarker.workloads.generation.read_architecture import describe
from benchmarker.workloads.generation.spec import VariantSpec

NEEDS_HQQ = pytest.mark.skipif(not find_spec("hqq"), reason="needs hqq")
FORMS = ["fp8", pytest.param("int8", marks=NEEDS_HQQ), pytest.param("int4", marks=NEEDS_HQQ)]
TEXT = tuple(range(5, 133))
POSITIONS = 300


@pytest.fixture
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


def source_of(model: PreTrainedModel, kv_form: str | None) -> TorchDecoder:
    return torch_engine("eager").decoder(model, CpuDevice(), kv_cache=kv_form)


def stored_bytes(cache: DynamicCache) -> int:
    """Return the number of bytes of all tensors in the cache's layers."""
    bytes_by_address: dict[int, int] = {}

    def collect(value: object) -> None:
        if isinstance(value, torch.Tensor):
            bytes_by_address[value.data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, list | tuple | dict):
            for element in value.values() if isinstance(value, dict) else value:
                collect(element)

    for layer in cache.layers:
        collect([getattr(layer, name, None) for name in ("keys", "values", "_quantized_keys", "_quantized_values")])
    return sum(bytes_by_address.values())


@pytest.mark.parametrize("kv_form", FORMS)
def test_stored_bytes_match_the_demand(model: PreTrainedModel, kv_form: str) -> None:
    caches = [DynamicCache(config=model.config), quantized_cache(model, kv_form)]
    with torch.no_grad():
        for cache in caches:
            model(torch.randint(0, 256, (1, POSITIONS)), past_key_values=cache, use_cache=True)
    unquantized, quantized = map(stored_bytes, caches)
    element_bytes = model.dtype.itemsize
    assert quantized / unquantized == pytest.approx(value_bytes(kv_form, element_bytes) / element_bytes, rel=0.05)
    shape = {"prompt_tokens": POSITIONS, "new_tokens": 2, "batch_size": 1, "depth": 0}
    demand = describe(model, kv_value_bytes=value_bytes(kv_form, element_bytes)).demand(**shape)
    assert demand.kv_bytes == pytest.approx(quantized, rel=0.05)


@pytest.mark.parametrize("kv_form", FORMS)
def test_divergence_of_the_quantized_cache_is_separate_from_rounding(model: PreTrainedModel, kv_form: str) -> None:
    check = step_divergence(source_of(model, kv_form), [TEXT])
    assert check is not None
    assert check.verdict == "cache"
    assert check.steps == 64
    assert check.rounding_kl_mean is not None
    assert check.rounding_kl_mean < 1e-6
    assert 1e-9 < check.kl_mean < 0.5
    assert "(the quantized KV cache; " in step_line(check)
    unquantized = step_divergence(source_of(model, None), [TEXT])
    assert unquantized is not None
    assert (unquantized.verdict, unquantized.steps) == ("equal", 127)


def test_generations_at_a_depth_are_repeatable(model: PreTrainedModel) -> None:
    source = source_of(model, "fp8")
    context, prompt = [list(TEXT[:64])], [list(TEXT[64:80])]
    generations = [source.generate(prompt, 12, context=context).tokens for _ in range(2)]
    assert generations[0] == generations[1]
    facts = source.facts()
    assert (facts.kv_cache, (facts.kv_cache_stored or "")[:20]) == ("quantized", "fp8 by transformers,")
    pieces = [token for piece in source.stream(torch.tensor(prompt), 4, frozenset()) for token in piece]
    assert pieces == list(source.generate(prompt, 4).tokens[0])


@pytest.mark.parametrize("engine", ["cuda_graph", "compile", "native"])
def test_engines_with_a_static_cache_refuse_kv_quantization(engine: str) -> None:
    variant = VariantSpec(name="x", quant="fp16", engine=engine, engine_options={"kv_cache": "fp8"})
    with pytest.raises(FieldError, match=f"kv_cache: .* grow, and the {engine} engine's lies .*; use --engine eager"):
        resolve(variant)


def test_missing_hqq_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarker.engines.decoders.eager.installed_version", lambda name: None)
    assert missing_library("int8") == (
        "kv_cache=int8: the library 'hqq' is not installed; pip install -e '.[kv-cache]' in benchmarker's folder"
    )
    assert missing_library(None) is None


@pytest.mark.parametrize(
    ("kv_form", "changed", "reason"),
    [
        ("fp8", {"layer_types": ["sliding_attention"]}, "packs full attention alone, not sliding_attention"),
        ("int8", {"head_dim": 80}, "groups of 64 do not divide 2 key heads of 80; use kv_cache=fp8"),
    ],
)
def test_incompatible_models_are_refused_before_timing(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, kv_form: str, changed: dict[str, object], reason: str
) -> None:
    for key, value in changed.items():
        monkeypatch.setattr(model.config, key, value)
    with pytest.raises(UnsupportedError, match=reason):
        source_of(model, kv_form)
