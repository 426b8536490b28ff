"""Fixtures of a small random model on disk, caches and signals, and the order of the tests."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarker.schema.model import ModelSpec
from benchmarker.workloads.generation.spec import VariantSpec
from script.house import ROOT, House

os.environ["AOT_INDUCTOR_DEBUG_COMPILE"] = "1"  # Compiles C++ without optimization, in 3/4 of the time.

SHAPE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 2048,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "rope_theta": 1000000,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float16",
}
"""Qwen3 with two layers, and weights large enough for different tokens."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the reasons of skipped tests, each once with a count."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[-1]).removeprefix("Skipped: ") for report in skipped if report.longrepr)
    if reasons:
        terminalreporter.section("skipped tests by reason")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5} {reason}")


LONG = {
    *("test_bad_records", "test_context_parallel_run", "test_finetune_run", "test_hub", "test_planted_faults"),
    *("test_prefill_gemm", "test_ranks", "test_report", "test_serving_run", "test_several_gpus", "test_workload_seam"),
}
"""Files that take 8 to 30 s and have no test marked slow."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files with the most slow tests first, so that none of them is left for one process at the end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path] or -0.5 * (item.path.stem in LONG))


@pytest.fixture(autouse=True, scope="session")
def ctrl_c() -> Iterator[None]:
    """Install Python's SIGINT handler. Background jobs of a shell and their child processes ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache folder for each test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("BENCHMARKER_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True, scope="session")
def _fewer_checked_steps() -> Iterator[None]:
    """Compare 32 decode steps of each run with the forward pass instead of 256, which take longer than the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarker.quality.step_check.STEPS", 32)
        yield


@pytest.fixture
def traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace Inductor by eager execution of the traced graph, because its C++ compiler takes many seconds."""
    import torch._inductor.compile_fx  # noqa: F401
    from torch._dynamo.backends.debugging import aot_eager

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda graph, inputs, **_: aot_eager(graph, inputs))


@pytest.fixture(scope="session")
def house() -> House:
    """Return the parsed modules of the package; parsing takes seconds."""
    return House(ROOT)


@pytest.fixture(scope="session")
def shape_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder with config and tokenizer, without weights."""
    from benchmarker.checkpoints.files import shipped_shape

    folder = tmp_path_factory.mktemp("shape")
    tokenizer = shipped_shape("qwen3-tiny")
    assert tokenizer is not None
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, folder / name)
    (folder / "config.json").write_text(json.dumps(SHAPE))
    return folder


@pytest.fixture(scope="session")
def session_model(shape_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder with weights, shared by all tests, which must not change it."""
    from benchmarker.quantization.load import find_checkpoint

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHMARKER_CACHE", str(tmp_path_factory.mktemp("session-cache")))
        dummy = ModelSpec(id=str(shape_folder), load_format="dummy")
        dummy_folder = find_checkpoint(dummy, VariantSpec(name="fp16", quant="fp16")).folder
    (dummy_folder / "benchmarker.json").unlink()
    return dummy_folder


@pytest.fixture
def model_folder(session_model: Path, tmp_path: Path) -> Path:
    """Return a copy of the model folder, which a test may change."""
    return Path(shutil.copytree(session_model, tmp_path / "model"))
