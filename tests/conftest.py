"""Fixtures for tests that need a model on disk: tiny, random, and real in every other way."""

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

os.environ["AOT_INDUCTOR_DEBUG_COMPILE"] = "1"  # Inductor's C++ without optimization: a quarter less to compile.

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
"""Two layers of Qwen3, with weights large enough that its tokens differ from one another."""


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
"""Files that take 8 to 30 s without a test that is marked slow."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that have the most slow tests, so that no long file is left for one process at the end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path] or -0.5 * (item.path.stem in LONG))


@pytest.fixture(autouse=True, scope="session")
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as at a terminal: a shell's background job ignores it, and so would every process that a test starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("BENCHMARKER_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True, scope="session")
def _few_steps_are_checked() -> Iterator[None]:
    """Compare 32 decode steps of each run with the forward pass instead of 256, which take longer than the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarker.quality.step_check.STEPS", 32)
        yield


@pytest.fixture
def traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled is traced and then run by torch's operators. Inductor needs many seconds of a C++ compiler."""
    import torch._inductor.compile_fx  # noqa: F401
    from torch._dynamo.backends.debugging import aot_eager

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda graph, inputs, **_: aot_eager(graph, inputs))


@pytest.fixture(scope="session")
def house() -> House:
    """The package's modules, parsed, which takes seconds."""
    return House(ROOT)


@pytest.fixture(scope="session")
def shape_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder without weights: config and tokenizer."""
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
    """A model's folder with weights, to be left as it is."""
    from benchmarker.quantization.load import find_checkpoint

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHMARKER_CACHE", str(tmp_path_factory.mktemp("session-cache")))
        dummy = ModelSpec(id=str(shape_folder), load_format="dummy")
        made = find_checkpoint(dummy, VariantSpec(name="fp16", quant="fp16")).folder
    (made / "benchmarker.json").unlink()
    return made


@pytest.fixture
def model_folder(session_model: Path, tmp_path: Path) -> Path:
    """A model's folder with weights, to be spoilt at will."""
    return Path(shutil.copytree(session_model, tmp_path / "model"))
