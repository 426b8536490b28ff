"""Test the text of `Generator` against greedy tokens, its stopping, and its errors."""

from __future__ import annotations

import io
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from benchmarker import Generator, load_model
from benchmarker.cli import machine_commands as verb
from benchmarker.core.errors import BenchmarkerError, DeviceError, SpecError
from benchmarker.engines.decoders.eager import EagerDecoder
from benchmarker.engines.decoders.static_decoder import cuda_graph_decoder
from benchmarker.hardware.device import CpuDevice
from tests.engines.test_engines_graph import Rerun

TEXT = "The history of the"


@pytest.fixture(scope="module")
def small() -> PreTrainedModel:
    return load_model("qwen3-small", dtype="float32")


def captured(model: PreTrainedModel) -> Generator:
    """Return a generator with a static cache, as on a GPU, whose capture reruns the step."""
    generator = Generator(model, engine="compile")
    generator._decoder = cuda_graph_decoder(model, CpuDevice(), capture=Rerun())
    return generator


@cache
def greedy_tokens(model: PreTrainedModel) -> tuple[int, ...]:
    """Return 130 greedy tokens, too many for a cache of 128 positions."""
    ids = torch.tensor([Generator(model)._tokenizer.encode(TEXT)])
    return tuple(EagerDecoder(model, CpuDevice()).generate(ids, 130).tokens[0])


def expected_text(model: PreTrainedModel, tokens: int) -> str:
    generator = Generator(model)
    greedy = greedy_tokens(model)[:tokens]
    stops = [index for index, token in enumerate(greedy) if token in generator.stop_tokens]
    text: str = generator._tokenizer.decode(greedy[: stops[0] if stops else None], skip_special_tokens=True)
    return text


@pytest.mark.parametrize("make", [Generator, captured])
def test_generated_text_decodes_the_measured_tokens(small: PreTrainedModel, make: Any) -> None:
    generator = make(small)
    text = generator.generate(TEXT, max_new_tokens=20)
    assert text == expected_text(small, 20)
    assert "".join(generator.generate(TEXT, max_new_tokens=20, stream=True)) == text
    # A shorter text with the existing cache, and a longer one with a larger cache.
    assert generator.generate(TEXT, max_new_tokens=5) == expected_text(small, 5)
    assert generator.generate(TEXT, max_new_tokens=130) == expected_text(small, 130)


def test_a_list_of_texts_is_refused(small: PreTrainedModel) -> None:
    texts: Any = [TEXT, TEXT]
    with pytest.raises(SpecError, match="text: must be a str, not list; call generate once for each text"):
        Generator(small).generate(texts)


@pytest.mark.parametrize("make", [Generator, captured])
def test_generation_stops_before_an_eos_token(
    small: PreTrainedModel, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = make(small)
    greedy = greedy_tokens(small)[:20]
    monkeypatch.setattr(small.generation_config, "eos_token_id", greedy[7])
    kept = greedy[: greedy.index(greedy[7])]
    assert generator.generate(TEXT, max_new_tokens=20) == generator._tokenizer.decode(kept)


def test_streaming_yields_pieces_and_can_be_closed_early(small: PreTrainedModel) -> None:
    pieces = Generator(small).generate(TEXT, max_new_tokens=50, stream=True)
    first = next(pieces)
    pieces.close()
    assert first
    assert expected_text(small, 50).startswith(first)


def test_text_past_the_models_positions_is_refused(small: PreTrainedModel) -> None:
    positions = small.config.max_position_embeddings
    with pytest.raises(SpecError, match=f"past the model's {positions} positions; generate at most"):
        Generator(small).generate(TEXT, max_new_tokens=positions)


def test_out_of_memory_raises_with_a_remedy(small: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(small, "generate", run_out)
    with pytest.raises(DeviceError, match=r"^out of memory after .*use a shorter text"):
        Generator(small).generate(TEXT)


def load(values: dict[str, Any]) -> Any:
    """Load a generator from command-line values."""
    return verb._load(values, device="cpu", chat_template=False, verbose=False)


def test_engine_options_reach_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarker.engines.base.NEEDS_GPU", {})
    monkeypatch.setattr("benchmarker.engines.generator.Generator", lambda model, **keywords: keywords)
    monkeypatch.setattr(
        "benchmarker.quantization.load.prepare_and_load", lambda *_: (SimpleNamespace(model=None), None)
    )
    monkeypatch.setattr("benchmarker.checkpoints.read_model.load_tokenizer", lambda checkpoint: None)
    keywords = load({"variant.engine": "native", "variant.engine_options": ["prefill=plain"]})
    assert (keywords["engine"], keywords["engine_options"]) == ("native", {"prefill": "plain"})


def test_unknown_engine_options_are_refused_with_their_name() -> None:
    with pytest.raises(BenchmarkerError, match="prefill"):
        load({"variant.engine": "native", "variant.engine_options": ["prefill=later"]})
    with pytest.raises(BenchmarkerError, match="prefill"):
        load({"variant.engine": "eager", "variant.engine_options": ["prefill=plain"]})


def test_native_on_a_cpu_is_refused_before_loading(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BenchmarkerError, match="native needs a CUDA GPU"):
        load({"subject.model.id": "/no/such/model", "variant.engine": "native"})
    # Printed before the libraries are imported.
    assert capsys.readouterr().err == "loading /no/such/model: fp16 native\n"


def test_each_nonempty_line_of_stdin_is_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\n two\n"))
    texts: list[str] = []

    def generate(text: str, **options: object) -> list[str]:
        texts.append(text)
        return []

    monkeypatch.setattr(verb, "_load", lambda *arguments, **options: SimpleNamespace(generate=generate))
    verb.generate()
    assert texts == ["one", " two"]
