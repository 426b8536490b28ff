"""Text in, text out: the same tokens as `generate`, where it stops, and what does not fit."""

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
    """A generator over a static cache, as on a GPU, with a capture that runs the step again."""
    generator = Generator(model, engine="compile")
    generator._decoder = cuda_graph_decoder(model, CpuDevice(), capture=Rerun())
    return generator


@cache
def greedy_tokens(model: PreTrainedModel) -> tuple[int, ...]:
    """Return 130 tokens, for which a cache of 128 positions is too small."""
    ids = torch.tensor([Generator(model)._tokenizer.encode(TEXT)])
    return tuple(EagerDecoder(model, CpuDevice()).generate(ids, 130).tokens[0])


def expected(model: PreTrainedModel, tokens: int) -> str:
    generator = Generator(model)
    made = greedy_tokens(model)[:tokens]
    stops = [at for at, token in enumerate(made) if token in generator.stop_tokens]
    text: str = generator._tokenizer.decode(made[: stops[0] if stops else None], skip_special_tokens=True)
    return text


@pytest.mark.parametrize("make", [Generator, captured])
def test_the_text_is_that_of_the_tokens_that_are_measured(small: PreTrainedModel, make: Any) -> None:
    generator = make(small)
    text = generator.generate(TEXT, max_new_tokens=20)
    assert text == expected(small, 20)
    assert "".join(generator.generate(TEXT, max_new_tokens=20, stream=True)) == text
    # A shorter and a longer one, with the cache that is there and with a larger one.
    assert generator.generate(TEXT, max_new_tokens=5) == expected(small, 5)
    assert generator.generate(TEXT, max_new_tokens=130) == expected(small, 130)


@pytest.mark.parametrize("make", [Generator, captured])
def test_it_stops_before_an_end_of_text_token(
    small: PreTrainedModel, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = make(small)
    made = greedy_tokens(small)[:20]
    monkeypatch.setattr(small.generation_config, "eos_token_id", made[7])
    until = made[: made.index(made[7])]
    assert generator.generate(TEXT, max_new_tokens=20) == generator._tokenizer.decode(until)


def test_streaming_gives_pieces_as_they_come_and_may_be_left(small: PreTrainedModel) -> None:
    pieces = Generator(small).generate(TEXT, max_new_tokens=50, stream=True)
    first = next(pieces)
    pieces.close()
    assert first
    assert expected(small, 50).startswith(first)


def test_what_is_past_the_models_positions_is_one_line(small: PreTrainedModel) -> None:
    positions = small.config.max_position_embeddings
    with pytest.raises(SpecError, match=f"past the model's {positions} positions; generate at most"):
        Generator(small).generate(TEXT, max_new_tokens=positions)


def test_running_out_of_memory_is_one_line(small: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(small, "generate", run_out)
    with pytest.raises(DeviceError, match=r"^out of memory after .*use a shorter text"):
        Generator(small).generate(TEXT)


def load(typed: dict[str, Any]) -> Any:
    """What the command line makes of what was typed."""
    return verb._load(typed, device="cpu", chat_template=False, verbose=False)


def test_options_of_an_engine_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarker.engines.base.NEEDS_GPU", {})
    monkeypatch.setattr("benchmarker.engines.generator.Generator", lambda model, **named: named)
    monkeypatch.setattr(
        "benchmarker.quantization.load.prepare_and_load", lambda *_: (SimpleNamespace(model=None), None)
    )
    monkeypatch.setattr("benchmarker.checkpoints.read_model.load_tokenizer", lambda checkpoint: None)
    named = load({"variant.engine": "native", "variant.engine_options": ["prefill=plain"]})
    assert (named["engine"], named["engine_options"]) == ("native", {"prefill": "plain"})


def test_an_option_that_the_engine_does_not_have_is_one_line() -> None:
    with pytest.raises(BenchmarkerError, match="prefill"):
        load({"variant.engine": "native", "variant.engine_options": ["prefill=later"]})
    with pytest.raises(BenchmarkerError, match="prefill"):
        load({"variant.engine": "eager", "variant.engine_options": ["prefill=plain"]})


def test_native_on_a_cpu_is_one_line_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BenchmarkerError, match="native needs a CUDA GPU"):
        load({"subject.model.id": "/no/such/model", "variant.engine": "native"})
    # The line that is printed before the libraries are imported.
    assert capsys.readouterr().err == "loading /no/such/model: fp16 native\n"


def test_each_line_of_a_pipe_is_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\n two\n"))
    texts: list[str] = []

    def generate(text: str, **options: object) -> list[str]:
        texts.append(text)
        return []

    monkeypatch.setattr(verb, "_load", lambda *arguments, **options: SimpleNamespace(generate=generate))
    verb.generate()
    assert texts == ["one", " two"]
