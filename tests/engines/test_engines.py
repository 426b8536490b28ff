"""Test token counts, tokens and compilation facts of the eager and compile engines on a random two-layer Qwen3."""

import time

import pytest
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.decoders.compile import compile_decoder
from benchmarker.engines.decoders.eager import EagerDecoder
from benchmarker.engines.decoders.prefill_decode import cache_length
from benchmarker.hardware.device import CpuDevice
from benchmarker.measure.clock import Generation
from benchmarker.schema.job import Procedure
from benchmarker.workloads.generation.source_benchmarker import ModelBenchmarker
from benchmarker.workloads.generation.spec import Grid
from tests.hardware.test_host_load import COMPILING, ScriptedLoads

EOS = 1


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, tie_word_embeddings=True, eos_token_id=EOS,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def prompt(batch: int = 1, tokens: int = 7) -> torch.Tensor:
    return torch.arange(2, 2 + tokens).repeat(batch, 1)


def generation(*, new_tokens: int, start: float, first: float, last: float, end: float) -> Generation:
    times = {"start_ns": start, "first_ns": first, "last_ns": last, "end_ns": end}
    return Generation(tokens=((0,) * new_tokens,), **{key: int(value * 1e9) for key, value in times.items()})


def test_tpot_divides_by_the_steps_between_tokens() -> None:
    sample = generation(new_tokens=5, start=1.0, first=1.5, last=3.5, end=3.75).sample(5)
    assert sample.ttft_s == 0.5
    assert sample.tpot_s == 0.5  # four steps, not five
    assert sample.latency_s == 2.75


def test_a_single_token_has_no_tpot() -> None:
    sample = generation(new_tokens=1, start=0.0, first=0.5, last=0.5, end=0.5).sample(1)
    assert sample.tpot_s is None


@pytest.mark.parametrize("new_tokens", [1, 2, 20])
def test_eager_generates_the_requested_number_of_tokens_in_order(model: PreTrainedModel, new_tokens: int) -> None:
    generation = EagerDecoder(model, CpuDevice()).generate(prompt(batch=2), new_tokens)
    assert [len(row) for row in generation.tokens] == [new_tokens] * 2
    assert generation.start_ns < generation.first_ns <= generation.last_ns <= generation.end_ns


def test_generation_continues_past_an_eos_token(model: PreTrainedModel) -> None:
    # Every token is an EOS token, so that generation would stop at the first.
    model.generation_config.eos_token_id = list(range(128))
    try:
        generation = EagerDecoder(model, CpuDevice()).generate(prompt(), 20)
    finally:
        model.generation_config.eos_token_id = EOS
    assert [len(row) for row in generation.tokens] == [20]


def test_cell_records_when_its_repeats_were_timed(model: PreTrainedModel) -> None:
    began_s = time.time()
    (cell,) = ModelBenchmarker(model).run(
        Grid(prompt_tokens=(7,), new_tokens=(4,)), Procedure(warmup=1, warmup_limit=1, runs=2)
    )
    assert cell.timed_at is not None
    start_s, end_s = cell.timed_at
    assert began_s + cell.warmup[0].latency_s <= start_s
    assert start_s + sum(sample.latency_s for sample in cell.samples) <= end_s <= time.time()


def test_cell_is_flagged_if_other_programs_load_the_host(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarker.hardware.monitor.HostGauge", ScriptedLoads(COMPILING))
    (cell,) = ModelBenchmarker(model).run(
        Grid(prompt_tokens=(7,), new_tokens=(4,)), Procedure(warmup=1, warmup_limit=1, runs=2)
    )
    assert "disturbed" in cell.flags
    assert cell.host_load == COMPILING


def test_memory_error_without_a_message_is_recorded_as_a_cell(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(model, "generate", run_out)
    (cell,) = ModelBenchmarker(model).run(Grid(prompt_tokens=(7,), new_tokens=(4,)))
    assert (cell.status, cell.reason, cell.timed_at) == ("oom_host", "MemoryError", None)


def test_cache_length_is_rounded_up_to_a_multiple_of_128() -> None:
    assert [cache_length(tokens) for tokens in (1, 128, 129)] == [128, 128, 256]


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
def test_compile_matches_eager_tokens_and_reports_compilation(model: PreTrainedModel) -> None:
    expected = EagerDecoder(model, CpuDevice()).generate(prompt(), 64).tokens
    runtime = compile_decoder(model, CpuDevice())
    runtime.generate(prompt(), 64)
    with runtime.timed():
        generation = runtime.generate(prompt(), 64)
    facts = runtime.facts()
    assert generation.tokens == expected
    assert (facts.graph_breaks, facts.recompilations) == (0, 0)
    assert (facts.compiled, facts.frames_compiled, facts.graphs_captured) == ("step", 1, None)
    assert facts.setup_s is not None
    assert facts.setup_s > (generation.end_ns - generation.start_ns) / 1e9


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
def test_recompilation_during_timing_raises(model: PreTrainedModel) -> None:
    runtime = compile_decoder(model, CpuDevice())
    runtime.generate(prompt(), 8)
    with runtime.timed(), pytest.raises(UnsupportedError, match="recompiled in a timed run"):
        runtime.generate(prompt(), 200)


@pytest.mark.slow
def test_graph_break_raises_with_the_operation(model: PreTrainedModel) -> None:
    def untraceable(module: torch.nn.Module, inputs: tuple[object, ...]) -> None:
        torch._dynamo.graph_break()

    hook = model.model.norm.register_forward_pre_hook(untraceable)
    try:
        with pytest.raises(UnsupportedError, match=r"torch\.compile: .*graph_break"):
            compile_decoder(model, CpuDevice()).generate(prompt(), 4)
    finally:
        hook.remove()


@pytest.mark.slow
def test_missing_cxx_compiler_raises_unsupported_error(model: PreTrainedModel) -> None:
    with (
        torch._inductor.config.patch({"cpp.cxx": (None, "/nonexistent/c++"), "force_disable_caches": True}),
        pytest.raises(UnsupportedError, match=r"torch\.compile: InvalidCxxCompiler: No working C\+\+ compiler"),
    ):
        compile_decoder(model, CpuDevice()).generate(prompt(), 4)


def test_graph_breaks_are_none_before_compilation(model: PreTrainedModel) -> None:
    assert compile_decoder(model, CpuDevice()).facts().graph_breaks is None


@pytest.mark.slow
def test_check_raises_if_nothing_was_compiled(model: PreTrainedModel) -> None:
    runtime = compile_decoder(model, CpuDevice())
    with torch.compiler.set_stance("force_eager"):
        runtime.generate(prompt(), 4)
    with pytest.raises(UnsupportedError, match="compiled nothing"):
        runtime.check()
