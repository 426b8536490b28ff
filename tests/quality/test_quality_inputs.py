"""Test the inputs of --quality and the error messages of unusable ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from benchmarker.checkpoints.base import Silent
from benchmarker.checkpoints.read_model import load_tokenizer
from benchmarker.core.errors import ModelError, QualityError, SpecError
from benchmarker.hardware.device import CpuDevice
from benchmarker.quality.evaluation_text import QUICK_WINDOWS, check_text, cut, is_text, read_text
from benchmarker.quality.judge import Plan, Subject, judge, make_plan
from benchmarker.quality.scoring import check_room, scratch_file
from benchmarker.quantization.load import find_checkpoint
from benchmarker.schema.model import ModelSpec
from benchmarker.schema.quality import QualitySpec
from benchmarker.workloads.generation.spec import VariantSpec
from tests import records

if TYPE_CHECKING:
    from benchmarker.engines.base import TokenSource

LONG = "The quick brown fox jumps over the lazy dog. " * 2000


def plan(folder: Path, quant: str = "int8", **quality: object) -> Plan:
    spec = QualitySpec.model_validate({"size": "quick", **quality})
    model, variant = ModelSpec(id=str(folder)), VariantSpec(name=quant, quant=quant)
    checkpoint = find_checkpoint(model, variant)
    return make_plan(
        spec, model, variant, name=quant, checkpoint=checkpoint, tokenizer=load_tokenizer(checkpoint), progress=Silent()
    )


def test_quick_windows_are_spread_over_the_shipped_text(session_model: Path) -> None:
    quick, full = plan(session_model), plan(session_model, size="full")
    assert quick.windows.ids.shape == (QUICK_WINDOWS, 289)
    assert quick.windows.targets.size == 2048
    assert full.windows.ids.shape[1] == 512
    assert full.windows.targets.size > 8 * quick.windows.targets.size
    tokens = full.windows.ids.flatten().tolist()
    positions = [position for window in quick.windows.ids.tolist() for position in _positions(window, tokens)]
    assert positions == sorted(positions)
    assert len(positions) == QUICK_WINDOWS
    assert positions[-1] > 0.9 * len(tokens)
    assert quick.file_bytes == 2048 * 2048 * 4


def _positions(window: list[int], tokens: list[int]) -> list[int]:
    """Return the positions of a window in a text, at multiples of its length."""
    return [
        position
        for position in range(0, len(tokens), len(window))
        if tokens[position : position + len(window)] == window
    ]


def test_a_text_file_is_recorded_with_its_hash(session_model: Path, tmp_path: Path) -> None:
    (tmp_path / "fox.txt").write_text(LONG)
    prepared = plan(session_model, text=str(tmp_path / "fox.txt"))
    assert prepared.text.name == "fox.txt"
    assert prepared.text.sha256 == read_text(str(tmp_path / "fox.txt")).sha256
    assert prepared.windows.text_tokens // 289 >= len(prepared.windows.ids)


def test_data_set_is_read_through_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "test.jsonl").write_text("".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(3)))
    assert read_text(str(folder)).content == "line 0\n\nline 1\n\nline 2"
    with pytest.raises(SpecError, match=r"no split 'tests'; did you mean 'test'\?"):
        read_text(f"{folder}::tests")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "there is no text in it; give a text of at least a few kB"),
        (b" \n\n", "there is no text in it; give a text of at least a few kB"),
        (b"\x89PNG\r\n\x1a\n\xff", "not a text file in UTF-8"),
        (b"all ASCII \0 and yet no text", "not a text file in UTF-8"),
    ],
)
def test_file_without_text_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(SpecError) as caught:
        read_text(str(tmp_path / "text"))
    assert str(caught.value) == f"--eval-text {tmp_path / 'text'}: {message}"


def test_text_shorter_than_a_window_is_refused(session_model: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Too short. " * 20)
    with pytest.raises(SpecError) as caught:
        plan(session_model, text=str(tmp_path / "short.txt"))
    message = str(caught.value)
    assert message.startswith("short.txt: ")
    assert message.endswith(" tokens, fewer than one window of 289; give a longer --eval-text")


def test_missing_file_is_not_taken_for_a_data_set(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError,
        match=r"no such file; a data set is written NAME:CONFIG:SPLIT; or give a text file, or leave --eval-text out",
    ):
        read_text(str(tmp_path / "missing.txt"))
    with pytest.raises(
        SpecError,
        match=r"no such file; a data set is written NAME:CONFIG:SPLIT; or give a text file, or leave --eval-text out",
    ):
        check_text(str(tmp_path / "missing"))


def test_baseline_with_a_different_vocabulary_is_refused(session_model: Path, model_folder: Path) -> None:
    tokenizer = json.loads((model_folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.get)
    vocabulary["another"] = vocabulary.pop(last)
    tokenizer["model"]["merges"] = [pair for pair in tokenizer["model"]["merges"] if "".join(pair) != last]
    (model_folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError) as caught:
        plan(session_model, baseline=str(model_folder))
    assert str(caught.value) == (
        f"--quality-baseline {model_folder}: its vocabulary differs from that of {session_model}, so that their "
        "predictions do not compare; give the model that it was quantized from"
    )


def test_quantized_checkpoint_requires_a_baseline(session_model: Path, model_folder: Path) -> None:
    config = json.loads((model_folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    (model_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="name the original with --quality-baseline MODEL"):
        plan(model_folder, "gptq")
    assert plan(model_folder, "gptq", baseline=str(session_model)).baseline.folder == session_model


def test_model_without_a_tokenizer_is_refused(model_folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model_folder / name).unlink()
    with pytest.raises(ModelError, match="no tokenizer in its folder, and --quality is measured on a text"):
        plan(model_folder)


def test_model_with_too_few_positions_is_refused(model_folder: Path) -> None:
    config = json.loads((model_folder / "config.json").read_text()) | {"max_position_embeddings": 256}
    (model_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="has 256 positions, and quality is measured in windows of 289"):
        plan(model_folder)


def test_tokenizer_larger_than_the_models_vocabulary_is_refused(model_folder: Path) -> None:
    config = json.loads((model_folder / "config.json").read_text()) | {"vocab_size": 100}
    (model_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as caught:
        plan(model_folder)
    assert "vocab_size in its config.json is 100, so that the model has no such token; put the" in str(caught.value)


@pytest.mark.parametrize("error", [RuntimeError, ImportError])
def test_unreadable_data_set_is_refused_in_one_line(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def load(*_: object) -> None:
        raise error("Dataset scripts are no longer supported,\nbut found old.py")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(SpecError) as caught:
        read_text("some/old")
    assert str(caught.value) == (
        "--eval-text some/old: no such file, and no data set that can be read: Dataset scripts are no longer "
        "supported, but found old.py; give a text file, or leave --eval-text out for the shipped text"
    )


def test_data_sets_are_compared_by_name() -> None:
    quality = records.quality(text="data set wiki:raw:test", text_asked="wiki:raw")
    assert is_text("wiki:raw", quality)
    assert not is_text("wiki:raw:train", quality)


def test_out_of_memory_in_the_first_window_closes_the_source(
    session_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("benchmarker.quality.scoring.save_step_predictions", run_out)
    closed: list[str] = []
    subject = Subject(cast("TokenSource", SimpleNamespace(model=None)), lambda: closed.append("source"))
    with pytest.raises(QualityError, match="--quality: out of memory while scoring"):
        judge(plan(session_model), subject, CpuDevice(), Silent())
    assert closed == ["source"]


def test_top_k_as_large_as_the_vocabulary_is_refused(session_model: Path) -> None:
    with pytest.raises(SpecError, match="--quality-topk 2048: the vocabulary has 2048 tokens; give fewer"):
        plan(session_model, top_k=2048)


def test_too_little_space_raises_with_size_and_remedy() -> None:
    with pytest.raises(QualityError) as caught:
        check_room(2**60)
    message = str(caught.value)
    assert message.startswith(f"--quality: no room in {tempfile.gettempdir()} for 1073741824.00 GiB of distributions (")
    assert message.endswith("are free); set TMPDIR to a folder with room, or keep less with --quality-topk 100")


def test_full_disk_raises_and_leaves_no_file(tmp_path: Path) -> None:
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from benchmarker.quality.scoring import scratch_file\n"
        "from benchmarker.core.errors import QualityError\n"
        "try:\n"
        "    scratch_file(10, 1000).__enter__()\n"
        "except QualityError as error:\n"
        "    print(error)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert f"no room in {tmp_path} for 0.0 MiB of distributions (file too large)" in process.stdout
    assert list(tmp_path.iterdir()) == []


def test_scratch_file_has_no_name_while_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_file(3, 5) as file:
        file[1] = 7
        assert file[1].tolist() == [7] * 5
        assert list(tmp_path.iterdir()) == []


def test_windows_begin_with_the_bos_token(session_model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(session_model, tmp_path / "bos"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    bos = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    special = {"<|im_start|>": {"id": "<|im_start|>", "ids": [2], "tokens": ["<|im_start|>"]}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, sequence],
        "pair": [bos, sequence],
        "special_tokens": special,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"bos_token": "<|im_start|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    windows = plan(folder).windows
    assert windows.begins_with == 2
    assert set(windows.ids[:, 0]) == {2}


def test_windows_are_contiguous_and_drop_the_remainder(session_model: Path) -> None:
    tokenizer = load_tokenizer(
        find_checkpoint(ModelSpec(id=str(session_model)), VariantSpec(name="fp16", quant="fp16"))
    )
    text = read_text(None)
    windows = cut(text, tokenizer, size="full")
    tokens = tokenizer(text.content, add_special_tokens=False)["input_ids"]
    assert windows.ids.flatten().tolist() == tokens[: windows.ids.size]
    assert len(tokens) - windows.ids.size < windows.ids.shape[1]
