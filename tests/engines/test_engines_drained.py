"""Test that the clock is read only after the device is synchronized, with a fake device that runs work at a wait.

As on a GPU, queued work costs no time until a synchronization. A clock read before the synchronization would count
that work in the next interval.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from benchmarker.engines.decoders import static_decoder
from benchmarker.engines.decoders.eager import EagerDecoder
from benchmarker.engines.decoders.graph_capture import Captured
from benchmarker.engines.decoders.static_decoder import cuda_graph_decoder
from benchmarker.measure import clock
from tests.engines.test_engines_graph import Rerun
from tests.fakes import FakeDevice

BEFORE_S = 500
"""Work queued before the generation."""
CHUNK_S = 100
"""Duration of a forward of several tokens."""
STEP_S = 10
TAIL_S = 7
"""Work queued after the last token."""


class QueueingDevice(FakeDevice):
    """Device whose clock advances only in `synchronize`."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0
        self.queued_s = 0

    def synchronize(self) -> None:
        self.now_s, self.queued_s = self.now_s + self.queued_s, 0

    def perf_counter_ns(self) -> int:
        return self.now_s * 10**9


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> QueueingDevice:
    device = QueueingDevice()
    for module in (clock, static_decoder):
        monkeypatch.setattr(module, "time", device)
    return device


@pytest.fixture
def model(device: QueueingDevice) -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()

    def queue(module: object, inputs: tuple[torch.Tensor, ...]) -> None:
        device.queued_s += CHUNK_S if inputs[0].shape[1] > 1 else STEP_S

    model.model.embed_tokens.register_forward_pre_hook(queue)
    return model


class GeneratingModel:
    """Fake of transformers' `generate`, which synchronizes once per token."""

    config = None

    def __init__(self, device: QueueingDevice) -> None:
        self._device = device

    def generate(self, prompt: torch.Tensor, *, max_new_tokens: int, streamer: Any, **_: object) -> torch.Tensor:
        streamer.put(prompt)
        for number in range(max_new_tokens):
            self._device.queued_s += STEP_S if number else CHUNK_S
            self._device.synchronize()
            streamer.put(prompt)
        self._device.queued_s += TAIL_S
        return torch.zeros(len(prompt), prompt.shape[1] + max_new_tokens)


def prompt() -> torch.Tensor:
    return torch.arange(2, 9)[None]


def test_eager_synchronizes_before_and_after_generation(device: QueueingDevice) -> None:
    device.queued_s = BEFORE_S
    sample = EagerDecoder(cast("PreTrainedModel", GeneratingModel(device)), device).generate(prompt(), 5).sample(5)
    assert (sample.ttft_s, sample.tpot_s, sample.latency_s) == (CHUNK_S, STEP_S, CHUNK_S + 4 * STEP_S + TAIL_S)


def test_static_decoder_synchronizes_around_prefill_and_after_the_last_step(
    device: QueueingDevice, model: PreTrainedModel
) -> None:
    runtime = cuda_graph_decoder(model, device, capture=Rerun())
    for _ in range(2):
        device.queued_s += BEFORE_S
        sample = runtime.generate(prompt(), 5).sample(5)
        assert (sample.ttft_s, sample.tpot_s, sample.latency_s) == (CHUNK_S, STEP_S, CHUNK_S + 4 * STEP_S)


class SynchronizingRerun(Rerun):
    """Capture that synchronizes, as a real capture does after its warm-up steps."""

    def __init__(self, device: QueueingDevice) -> None:
        super().__init__()
        self._device = device

    def __call__(self, step: Callable[[], None]) -> Captured:
        captured = super().__call__(step)
        self._device.synchronize()
        return captured


@pytest.mark.parametrize("depth", [0, 60])
def test_setup_time_is_capture_plus_first_generation_without_depth(
    device: QueueingDevice, model: PreTrainedModel, depth: int
) -> None:
    runtime = cuda_graph_decoder(model, device, capture=SynchronizingRerun(device))
    runtime.generate(prompt(), 5, context=torch.ones(1, depth, dtype=torch.int64) if depth else None)
    # One-token forward that gives the cache's shape, three warm-up steps, the captured step, and the generation.
    assert runtime.facts().setup_s == STEP_S + 4 * STEP_S + CHUNK_S + 4 * STEP_S


def test_second_shape_needs_no_one_token_forward(device: QueueingDevice, model: PreTrainedModel) -> None:
    runtime = cuda_graph_decoder(model, device, capture=SynchronizingRerun(device))
    for new_tokens in (5, 200):
        runtime.generate(prompt(), new_tokens)
        device.synchronize()
    assert device.now_s == STEP_S + sum(4 * STEP_S + CHUNK_S + (count - 1) * STEP_S for count in (5, 200))
