"""Steps after timing: count of kernels, profile and energy, and their reasons if they fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarker.core.console import Terminal
from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.decoders.static_decoder import cuda_graph_decoder
from benchmarker.hardware.device import Device
from benchmarker.schema.job import Procedure
from benchmarker.schema.model import EngineFacts
from benchmarker.schema.record import Missing, Profile
from benchmarker.workloads.generation import generation_bench as afterwards
from benchmarker.workloads.generation.generation_bench import (
    LastCell,
    after_timing,
    count_energy,
    count_kernels_per_token,
    profile_generation,
)
from benchmarker.workloads.generation.prompts import Prompt
from benchmarker.workloads.generation.record import GenerationRecord
from benchmarker.workloads.generation.source_benchmarker import ModelBenchmarker
from benchmarker.workloads.generation.spec import GenerationJob, Grid
from tests.engines.test_engines_graph import Rerun
from tests.fakes import FakeDevice
from tests.records import cell, missing, profile, record

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB"


def job_of(grid: Grid) -> GenerationJob:
    return cast("GenerationJob", SimpleNamespace(points=grid.points, procedure=Procedure(), part=object()))


def last(job: GenerationJob, measured: GenerationRecord, subject: ModelBenchmarker) -> LastCell:
    return LastCell(job, measured, subject, Path("fp16.json"), Terminal(quiet=True))


def benchmarker(in_graph: int | None, kernels: float | None) -> ModelBenchmarker:
    facts = EngineFacts(name="graph", tokens_read="end", kv_cache="static", graph_kernels=in_graph)
    runtime = SimpleNamespace(kernels_per_token=lambda count: kernels, facts=lambda: facts)
    device = SimpleNamespace(kind="cuda")
    return cast("ModelBenchmarker", SimpleNamespace(device=device, source=runtime, step=lambda point: lambda: None))


def counted(in_graph: int | None, kernels: float | None) -> dict[str, Any]:
    measured = record("fp16", cell(), cell(status="oom_gpu", reason="full"))
    job = job_of(Grid(prompt_tokens=(26,), new_tokens=(50,), batch_size=(1, 2)))
    return after_timing(count_kernels_per_token, last(job, measured, benchmarker(in_graph, kernels)))


def test_graph_with_missing_kernels_invalidates_its_cells() -> None:
    # Observed with gptqmodel's ExLlamaV2 kernel, which ran on another stream: 929 tok/s without any matrix product.
    changed = counted(1792, 2044.0)
    assert [changed_cell.status for changed_cell in changed["cells"]] == ["invalid", "oom_gpu"]
    assert changed["cells"][0].reason == "the graph holds 1,792 of the 2,044 kernels of a step"
    assert changed["engine"].kernels_per_token == 2044.0


@pytest.mark.parametrize(("in_graph", "kernels"), [(2044, 2044.0), (None, 2044.0), (2044, None)])
def test_complete_or_unknown_graphs_change_no_cell(in_graph: int | None, kernels: float | None) -> None:
    assert "cells" not in counted(in_graph, kernels)


@pytest.mark.parametrize("runtime", ["eager", "graph"])
def test_kernels_are_counted_at_the_last_cell_that_fits(monkeypatch: pytest.MonkeyPatch, runtime: str) -> None:
    config = Qwen3Config(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=512,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()
    batch_sizes: list[int] = []

    def run_out(module: object, inputs: tuple[torch.Tensor, ...]) -> None:
        batch_sizes.append(len(inputs[0]))
        if len(inputs[0]) > 2:
            raise torch.OutOfMemoryError(FULL)

    model.model.embed_tokens.register_forward_pre_hook(run_out)

    def count(work: Callable[[], object], device: Device) -> int:
        batch_sizes.clear()
        work()
        return len(batch_sizes)

    monkeypatch.setattr(afterwards, "count_kernels", count)
    device = FakeDevice()
    subject = ModelBenchmarker(model, device=device)
    if runtime == "graph":
        subject.source = cuda_graph_decoder(model, device, capture=Rerun())
    grid = Grid(prompt_tokens=(3,), new_tokens=(4,), batch_size=(1, 2, 64))
    cells = tuple(subject.run(grid, Procedure(warmup=1, warmup_limit=1, runs=2)))
    assert [measured_cell.status for measured_cell in cells] == ["ok", "ok", "oom_gpu"]
    changed = after_timing(count_kernels_per_token, last(job_of(grid), record("fp16", *cells), subject))
    assert changed["engine"].kernels_per_token == 1
    assert set(batch_sizes) == {2}


def working(work: Callable[..., None]) -> ModelBenchmarker:
    """Return a benchmarker whose repeats and counts of kernels call `work`."""
    source = SimpleNamespace(kernels_per_token=work, is_elsewhere=False)
    prompts = (Prompt((1,) * 26, "test"),)
    return cast(
        "ModelBenchmarker",
        SimpleNamespace(device=FakeDevice(), source=source, step=lambda point: work, prompts=lambda point: prompts),
    )


def refusing(error: Exception) -> ModelBenchmarker:
    """Return a benchmarker whose steps after timing raise the error."""

    def refuse(*_: object) -> None:
        raise error

    return working(refuse)


GRID = Grid(prompt_tokens=(26,), new_tokens=(50,))
STEPS: dict[str, Callable[[ModelBenchmarker], dict[str, Any]]] = {
    "count kernels": lambda of: after_timing(count_kernels_per_token, last(job_of(GRID), record("fp16"), of)),
    "profile": lambda of: after_timing(profile_generation, last(job_of(GRID), record("fp16"), of)),
    "count energy": lambda of: after_timing(count_energy, last(job_of(GRID), record("fp16"), of)),
}


@pytest.fixture
def _board(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(afterwards, "find_gpu", lambda device: None)
    monkeypatch.setattr(afterwards, "measure_energy", lambda board, *, generation, prefill: generation())


@pytest.mark.usefixtures("_board")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError(f"{FULL}\nmore"), missing(FULL, "oom_gpu")),
        (UnsupportedError("no such graph"), missing("no such graph", "unsupported")),
    ],
    ids=["no room", "not supported"],
)
def test_unsupported_or_out_of_memory_step_is_recorded_with_a_reason(
    step: str, error: Exception, expected: Missing
) -> None:
    field = "no_energy" if step == "count energy" else "no_profile"
    assert STEPS[step](refusing(error)) == {field: expected}


@pytest.mark.usefixtures("_board")
@pytest.mark.parametrize("step", STEPS)
def test_other_errors_are_raised(step: str) -> None:
    with pytest.raises(RuntimeError, match="shapes do not match"):
        STEPS[step](refusing(RuntimeError("shapes do not match")))


def test_profile_is_recorded_with_its_shape_and_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    full_profile = profile()
    base = Profile(**{name: value for name, value in full_profile if name in Profile.model_fields})
    monkeypatch.setattr(afterwards, "profile_step", lambda step, **options: base)
    subject = working(lambda: None)
    assert STEPS["profile"](subject) == {
        "profile": full_profile.model_copy(update={"new_tokens": 32, "depth": 0}),
        "no_profile": None,
    }
    job = job_of(Grid(prompt_tokens=(26,), new_tokens=(100,), depth=(0, 64)))
    deep = after_timing(profile_generation, last(job, record("fp16", cell(), cell(depth=64)), subject))["profile"]
    # The profile contains its shape, because another depth has another verdict.
    assert (deep.prompt_tokens, deep.new_tokens, deep.batch_size, deep.depth) == (26, 32, 1, 64)


def test_external_engine_has_a_reason_for_its_missing_profile() -> None:
    source = SimpleNamespace(is_elsewhere=True)
    subject = cast("ModelBenchmarker", SimpleNamespace(source=source, device=FakeDevice()))
    job = cast("GenerationJob", SimpleNamespace(variant=SimpleNamespace(engine="llama-cpp"), points=GRID.points))
    assert after_timing(profile_generation, last(job, record("fp16"), subject)) == {
        "no_profile": missing(
            "llama-cpp runs in a process of its own, which torch.profiler here does not see", "unsupported"
        )
    }
