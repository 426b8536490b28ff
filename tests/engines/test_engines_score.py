"""Test that scores of the timed decode step match the model's forward and reveal a fault in the step."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from benchmarker.engines.decoders import prefill_decode
from benchmarker.engines.decoders.compile import compile_decoder
from benchmarker.engines.decoders.eager import EagerDecoder
from benchmarker.engines.decoders.static_decoder import cuda_graph_decoder
from benchmarker.engines.decoders.torch_engine import TorchDecoder
from benchmarker.engines.registry import MODEL_ENGINES
from benchmarker.hardware.device import CpuDevice
from benchmarker.kernels.rewritten_module import base_class
from tests.engines.test_engines_graph import Rerun, model, prompt
from tests.loading import load

__all__ = ["model"]

IDS = torch.tensor([[5, 90, 17, 3, 64, 100, 2, 31, 77, 8]])


def divergence(model: PreTrainedModel, decoder: TorchDecoder) -> float:
    """Return the largest Kullback-Leibler divergence of the step from the model's forward, in nats."""
    with torch.no_grad():
        expected = model(IDS).logits[0].float().log_softmax(-1)
    scores = decoder.log_probabilities(IDS)
    assert (scores.dtype, scores.shape) == (torch.float32, expected.shape)
    return float((expected.exp() * (expected - scores)).sum(-1).max())


DECODERS: dict[str, Callable[[PreTrainedModel], TorchDecoder]] = {
    "eager": lambda model: EagerDecoder(model, CpuDevice()),
    "cuda_graph": lambda model: cuda_graph_decoder(model, CpuDevice(), capture=Rerun()),
}


@pytest.mark.parametrize("name", DECODERS)
def test_step_scores_match_the_models_forward(model: PreTrainedModel, name: str) -> None:
    decoder = DECODERS[name](model)
    decoder.generate(prompt(), 5)
    assert divergence(model, decoder) < 1e-3
    # The cached keys of the scored text do not change a later generation.
    assert decoder.generate(prompt(), 20).tokens == EagerDecoder(model, CpuDevice()).generate(prompt(), 20).tokens


@pytest.mark.slow
@pytest.mark.parametrize("captured", [pytest.param(False, marks=pytest.mark.by_hand), True])
@pytest.mark.usefixtures("traced_only")
def test_compiled_step_scores_match_the_models_forward(model: PreTrainedModel, captured: bool) -> None:
    decoder = compile_decoder(model, CpuDevice(), capture=Rerun() if captured else None)
    assert divergence(model, decoder) < 1e-3
    facts = decoder.facts()
    assert facts.frames_compiled == (2 if captured else 1)


def test_scores_reveal_a_fault_in_the_step(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    step = prefill_decode.decode_step

    def sharpened(*arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
        token, logits = step(*arguments)  # type: ignore[arg-type]
        return token, 1.5 * logits

    monkeypatch.setattr(prefill_decode, "decode_step", sharpened)
    decoder = DECODERS["cuda_graph"](model)
    assert divergence(model, decoder) > 1e-2
    # The greedy tokens do not reveal it: the most likely token is unchanged.
    assert decoder.generate(prompt(), 20).tokens == EagerDecoder(model, CpuDevice()).generate(prompt(), 20).tokens


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
def test_untraceable_linears_are_wrapped_and_keep_the_library_kernel(shape_folder) -> None:
    model = load(shape_folder, "gptq", dtype="bfloat16", dummy=True, kernel="torch").model
    classes = [type(module) for module in model.modules()]
    compile_decoder(model, CpuDevice(), capture=Rerun()).generate(torch.arange(10, 30)[None], 3)
    wrapped = [module for module, kind in zip(model.modules(), classes, strict=True) if type(module) is not kind]
    assert wrapped
    assert all(module.own_class is base_class(type(module)) for module in wrapped)


def test_torch_engines_are_registered() -> None:
    assert list(MODEL_ENGINES) == ["eager", "cuda_graph", "compile", "native"]
