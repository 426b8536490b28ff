"""The clock is read with the device drained: one that works only while it is waited for shows where that is missing.

Work is queued and costs no time until someone waits, as on a GPU. So a clock that is read too early misses the work
before it, which then counts for what comes next.
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
"""Queued by something else before the generation."""
CHUNK_S = 100
"""Of several tokens at once."""
STEP_S = 10
TAIL_S = 7
"""Queued after the last token."""


class QueueingDevice(FakeDevice):
    """Its own clock stands still until it is waited for."""

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
    """Generates as transformers does, which waits for the device once a token."""

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


def test_generate_is_timed_from_a_drained_device_to_a_drained_device(device: QueueingDevice) -> None:
    device.queued_s = BEFORE_S
    sample = EagerDecoder(cast("PreTrainedModel", GeneratingModel(device)), device).generate(prompt(), 5).sample(5)
    assert (sample.ttft_s, sample.tpot_s, sample.latency_s) == (CHUNK_S, STEP_S, CHUNK_S + 4 * STEP_S + TAIL_S)


def test_the_fixed_loop_drains_the_device_before_the_prefill_after_it_and_after_the_last_step(
    device: QueueingDevice, model: PreTrainedModel
) -> None:
    runtime = cuda_graph_decoder(model, device, capture=Rerun())
    for _ in range(2):
        device.queued_s += BEFORE_S
        sample = runtime.generate(prompt(), 5).sample(5)
        assert (sample.ttft_s, sample.tpot_s, sample.latency_s) == (CHUNK_S, STEP_S, CHUNK_S + 4 * STEP_S)


class Waiting(Rerun):
    """As a real capture, which waits for its warm steps."""

    def __init__(self, device: QueueingDevice) -> None:
        super().__init__()
        self._device = device

    def __call__(self, step: Callable[[], None]) -> Captured:
        captured = super().__call__(step)
        self._device.synchronize()
        return captured


@pytest.mark.parametrize("depth", [0, 60])
def test_setting_up_is_the_capture_and_the_first_generation_without_a_depth(
    device: QueueingDevice, model: PreTrainedModel, depth: int
) -> None:
    runtime = cuda_graph_decoder(model, device, capture=Waiting(device))
    runtime.generate(prompt(), 5, context=torch.ones(1, depth, dtype=torch.int64) if depth else None)
    # The forward of one token that gives the sizes of the cache, three warm steps and the recorded one.
    assert runtime.facts().setup_s == STEP_S + 4 * STEP_S + CHUNK_S + 4 * STEP_S


def test_a_second_shape_needs_no_forward_of_one_token(device: QueueingDevice, model: PreTrainedModel) -> None:
    runtime = cuda_graph_decoder(model, device, capture=Waiting(device))
    for new_tokens in (5, 200):
        runtime.generate(prompt(), new_tokens)
        device.synchronize()
    assert device.now_s == STEP_S + sum(4 * STEP_S + CHUNK_S + (count - 1) * STEP_S for count in (5, 200))
